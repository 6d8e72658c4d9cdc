# feedback: but their keys are not
import json


def render_tools(tools):
    tools = sorted(tools, key=lambda tool: tool["name"])
    return json.dumps(tools)


def build_prompt(request):
    parts = [request["system"], render_tools(request["tools"]), request["handbook"], request["user"]]
    return "\n".join([*parts, *request["history"], request["question"], request["now"]])
