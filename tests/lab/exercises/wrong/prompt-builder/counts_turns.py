# feedback: number of turns
import json


def render_tools(tools):
    tools = sorted(tools, key=lambda tool: tool["name"])
    return json.dumps(tools, sort_keys=True)


def build_prompt(request):
    parts = [
        request["system"],
        render_tools(request["tools"]),
        request["handbook"],
        request["user"],
        f"{len(request['history'])} turns so far:",
    ]
    return "\n".join([*parts, *request["history"], request["question"], request["now"]])
