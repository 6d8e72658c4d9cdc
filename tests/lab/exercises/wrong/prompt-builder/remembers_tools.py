# feedback: is the text of the first ones kept
import json

kept = []


def render_tools(tools):
    tools = sorted(tools, key=lambda tool: tool["name"])
    if not kept:
        kept.append(json.dumps(tools, sort_keys=True))
    return kept[0]


def build_prompt(request):
    parts = [request["system"], render_tools(request["tools"]), request["handbook"], request["user"]]
    return "\n".join([*parts, *request["history"], request["question"], request["now"]])
