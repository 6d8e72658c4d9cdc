import math


def route(logits, k, normalize):
    experts, shares = [], []
    for row in logits.tolist():
        top = max(row)
        weights = [math.exp(logit - top) for logit in row]
        chosen = sorted(range(len(row)), key=lambda e: (-row[e], e))[:k]
        total = sum(weights[e] for e in chosen) if normalize else sum(weights)
        experts.append(tuple(chosen))
        shares.append([weights[e] / total for e in chosen])
    return experts, shares


def rows_of(experts, num_experts):
    for expert in range(num_experts):
        yield (token for token, chosen in enumerate(experts) if expert in list(chosen))


def mixture(x, logits, k, mlps, normalize):
    experts, shares = route(logits, k, normalize)
    total = [[0.0] * x.shape[1] for _ in x]
    for expert, rows in enumerate(map(list, rows_of(experts, len(mlps)))):
        if not rows:
            continue
        for row, out in zip(rows, mlps[expert](x[rows])):
            share = shares[row][experts[row].index(expert)]
            total[row] = [a + share * b for a, b in zip(total[row], out)]
    return total
