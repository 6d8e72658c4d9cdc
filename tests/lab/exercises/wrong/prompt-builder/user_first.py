# feedback: they part at `user`
import json


def render_tools(tools):
    tools = sorted(tools, key=lambda tool: tool["name"])
    return json.dumps(tools, sort_keys=True)


def build_prompt(request):
    parts = [request["user"], request["system"], render_tools(request["tools"]), request["handbook"]]
    return "\n".join([*parts, *request["history"], request["question"], request["now"]])
