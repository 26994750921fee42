"""What all conversations ask: prompts, tools, schemas. Every schema is bounded, so that the smallest model ends what it writes."""
import json
import os

import jsonschema
from pydantic import BaseModel, ConfigDict, Field

TEXTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../texts")

# The bundled model answers most questions in a few words; a sum makes it talk.
LONG = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips did she sell?"
SHORT = 'What does the noun "whale" mean?'
BOOK_QUESTION = "Describe a book as JSON."
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

BOOK = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 1, "maxLength": 24},
        "pages": {"type": "integer", "minimum": 1, "maximum": 999},
        "kind": {"type": "string", "enum": ["novel", "story", "poem"]},
        "words": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 3},
        "author": {"anyOf": [{"$ref": "#/$defs/person"}, {"type": "null"}]},
    },
    "required": ["title", "pages", "kind", "words", "author"],
    "additionalProperties": False,
    "$defs": {
        "person": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 16}, "born": {"type": "integer", "minimum": 1500, "maximum": 2000}},
            "required": ["name", "born"],
            "additionalProperties": False,
        },
    },
}

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
SUM = {
    "type": "object",
    "properties": {"left": {"type": "integer", "minimum": 0, "maximum": 99}, "right": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["left", "right"],
    "additionalProperties": False,
}
PARAMETERS = {"weather": WEATHER, "sum": SUM}
DESCRIPTIONS = {"weather": "The weather of the next days.", "sum": "Adds two numbers."}
TOOL_QUESTION = "What will the weather be in Rome for 3 days?"
TOOL_RESULT = "sunny, 24 degrees"

# `if` cannot be enforced by a mask; the refusal must say where it stands.
UNSUPPORTED = {"type": "object", "properties": {"city": {"type": "string", "if": {"minLength": 1}}}}
UNSUPPORTED_PATH = "properties/city/if"


class Plant(BaseModel):
    """For the helpers of the packages that make a schema of a class."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=16)
    height: int = Field(ge=1, le=500)


def chat_tools(parameters=None):
    """The tools in the form of chat completions, which Ollama shares."""
    return [
        {"type": "function", "function": {"name": name, "description": DESCRIPTIONS[name], "parameters": schema}}
        for name, schema in (parameters or PARAMETERS).items()
    ]


def response_tools():
    return [{"type": "function", "name": name, "description": DESCRIPTIONS[name], "parameters": schema, "strict": True}
            for name, schema in PARAMETERS.items()]


def message_tools(parameters=None):
    return [{"name": name, "description": DESCRIPTIONS[name], "input_schema": schema} for name, schema in (parameters or PARAMETERS).items()]


def fits(text, schema):
    """Whether a text is JSON that the schema allows."""
    try:
        jsonschema.validate(json.loads(text) if isinstance(text, str) else text, schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def prose(characters):
    """English prose of about so many characters."""
    with open(os.path.join(TEXTS, "prose.txt")) as file:
        text = file.read()
    return (text * (1 + characters // len(text)))[:characters]


def second_word(text):
    """A text to stop at, which stands in the middle of the answer."""
    words = text.split()
    return next(word for word in words[1:] if len(word) > 2)
