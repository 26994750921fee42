"""Keeps what schemathesis sends cheap: few tokens, few answers, prompts that are computed in no time. Loaded by ../check_openapi.sh."""
import schemathesis

TOKENS, ANSWERS, CHARACTERS = 4, 2, 2000
LIMITS = {"max_tokens": TOKENS, "max_completion_tokens": TOKENS, "max_output_tokens": TOKENS, "num_predict": TOKENS, "n": ANSWERS}
# The field by which a protocol limits its answer, by the end of its path.
FIELDS = {"/chat/completions": "max_tokens", "/completions": "max_tokens", "/responses": "max_output_tokens", "/messages": "max_tokens"}


def cheap(value):
    """Cuts numbers and texts that would make a request long; leaves what is wrong as wrong as it is."""
    if isinstance(value, dict):
        return {name: cheap(LIMITS[name] if number_above(name, inner) else inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [cheap(inner) for inner in value[:50]]
    if isinstance(value, str):
        return value[:CHARACTERS]
    return value


def number_above(name, value):
    return name in LIMITS and isinstance(value, (int, float)) and not isinstance(value, bool) and value > LIMITS[name]


@schemathesis.hook
def map_body(context, body):
    path = context.operation.path if context.operation else ""
    body = cheap(body)
    if isinstance(body, dict):
        for end, field in FIELDS.items():
            if path.endswith(end):
                # Missing where it must be there stays missing.
                if field == "max_tokens" and path.endswith("/messages"):
                    break
                body.setdefault(field, TOKENS)
                break
        if path.startswith("/api/") and isinstance(body.get("options", {}), dict):
            body["options"] = {"num_predict": TOKENS, **body.get("options", {})}
    return body
