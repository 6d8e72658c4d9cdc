from minillm.attention.sdpa import SDPAAttention


class TritonAttention(SDPAAttention):
    device_types = ("cuda",)
