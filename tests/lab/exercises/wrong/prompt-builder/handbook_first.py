# feedback: they part at `handbook`
import json


def render_tools(tools):
    tools = sorted(tools, key=lambda tool: tool["name"])
    return json.dumps(tools, sort_keys=True)


def build_prompt(request):
    parts = [request["handbook"], request["system"], render_tools(request["tools"]), request["user"]]
    return "\n".join([*parts, *request["history"], request["question"], request["now"]])
