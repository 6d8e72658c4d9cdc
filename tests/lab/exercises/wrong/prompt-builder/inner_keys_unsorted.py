# feedback: the keys inside
import json


def render_tools(tools):
    tools = sorted(tools, key=lambda tool: tool["name"])
    return json.dumps([dict(sorted(tool.items())) for tool in tools])


def build_prompt(request):
    parts = [request["system"], render_tools(request["tools"]), request["handbook"], request["user"]]
    return "\n".join([*parts, *request["history"], request["question"], request["now"]])
