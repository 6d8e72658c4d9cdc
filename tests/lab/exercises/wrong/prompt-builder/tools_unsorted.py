# feedback: sort them by name
import json


def render_tools(tools):
    return json.dumps(tools, sort_keys=True)


def build_prompt(request):
    parts = [request["system"], render_tools(request["tools"]), request["handbook"], request["user"]]
    return "\n".join([*parts, *request["history"], request["question"], request["now"]])
