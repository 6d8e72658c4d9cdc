from minillm.attention.sdpa import SDPAAttention


class FlashAttention2(SDPAAttention):
    device_types = ("cuda",)


class FlashAttention3(SDPAAttention):
    device_types = ("cuda",)


class TorchVarlenAttention(SDPAAttention):
    device_types = ("cuda",)
