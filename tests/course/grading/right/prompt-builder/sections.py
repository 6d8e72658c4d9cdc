import json


def canonical(value):
    if isinstance(value, dict):
        return {key: canonical(inside) for key, inside in sorted(value.items())}
    if isinstance(value, (list, tuple)):
        return [canonical(inside) for inside in value]
    return value


def render_tools(tools):
    pairs = sorted((tool["name"], i) for i, tool in enumerate(tools))
    return json.dumps([canonical(tools[i]) for _, i in pairs], indent=2)


def build_prompt(request):
    """Headings between the parts; the time before the question."""
    prompt = "# Tools\n" + render_tools(request["tools"]) + "\n# What you do\n" + request["system"]
    prompt += f"\n\n# Handbook\n{request['handbook']}\n\n# You talk to\n<{request['user']}>\n"
    for number, turn in enumerate(request["history"]):
        prompt += f"[{'user' if number % 2 == 0 else 'model'}, {number}] {turn}\n"
    return prompt + f"(It is {request['now']}.)\n[user] {request['question']}\n[model] "
