# feedback: its order is the author's
import json


def in_order(value):
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return sorted(map(in_order, value)) if isinstance(value, list) else value


def render_tools(tools):
    tools = sorted(tools, key=lambda tool: tool["name"])
    return json.dumps([in_order(tool) for tool in tools])


def build_prompt(request):
    parts = [request["system"], render_tools(request["tools"]), request["handbook"], request["user"]]
    return "\n".join([*parts, *request["history"], request["question"], request["now"]])
