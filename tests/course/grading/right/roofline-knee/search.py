import copy


def clocks(m, device, batch, context):
    read = m.parameters / 8 * m.weight_bits
    flops = 0
    for _ in range(batch if batch < 50 else 0):
        read += context * m.kv_bytes
        flops += 2 * m.parameters + context * m.attention_flops
    if batch >= 50:
        read += m.kv_bytes * context * batch
        flops = batch * 2 * m.parameters + batch * context * m.attention_flops
    return read, flops


def step_floor(model, machine, batch, context):
    read, flops = clocks(model, machine, batch, context)
    seconds = [read / machine.bytes_per_s, flops / machine.flops_per_s]
    return sorted(seconds)[-1]


def intensity(model, batch, context):
    read, flops = clocks(model, None, batch, context)
    return flops / read


def knee(model, machine, context):
    ridge = machine.flops_per_s / machine.bytes_per_s
    if context:
        limit = (2 * model.parameters + context * model.attention_flops) / (context * model.kv_bytes)
        if limit <= ridge:
            return None
    high = 1
    while intensity(model, high, context) < ridge:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if intensity(model, middle, context) >= ridge:
            high = middle
        else:
            low = middle
    return high


def gain(model, machine, batch, context, bits):
    class Fewer:
        parameters, kv_bytes, attention_flops = model.parameters, model.kv_bytes, model.attention_flops
        weight_bits = bits

    return step_floor(copy.copy(model), machine, batch, context) / step_floor(Fewer(), machine, batch, context)
