"""Names of span attributes: those of the GenAI semantic conventions, and our own.

The GenAI names are constants of this module, because the conventions are in development: the
package opentelemetry-semantic-conventions marks its own as deprecated since they moved to another
repository. Source: https://github.com/open-telemetry/semantic-conventions/tree/v1.41.0/docs/gen-ai
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CONVENTIONS: Final = "1.41.0"
"""The version of the OpenTelemetry semantic conventions that the spans follow."""

SCHEMA_URL: Final = f"https://opentelemetry.io/schemas/{CONVENTIONS}"

OPERATION: Final = "gen_ai.operation.name"
WORKFLOW: Final = "gen_ai.workflow.name"
CONVERSATION: Final = "gen_ai.conversation.id"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
ERROR_TYPE: Final = "error.type"

INVOKE_WORKFLOW: Final = "invoke_workflow"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

OTHER_ERROR: Final = "_OTHER"
"""The value of `error.type` for an error without a type."""

REQUEST_NUMBERS: Final[Mapping[str, str]] = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}
REQUEST_COUNTS: Final[Mapping[str, str]] = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
}
USAGE_DETAILS: Final[Mapping[tuple[str, str], str]] = {
    ("input_token_details", "cache_read"): "gen_ai.usage.cache_read.input_tokens",
    ("input_token_details", "cache_creation"): "gen_ai.usage.cache_creation.input_tokens",
    ("output_token_details", "reasoning"): "gen_ai.usage.reasoning.output_tokens",
}

PROVIDERS: Final[Mapping[str, str]] = {
    "amazon_bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google_genai": "gcp.gemini",
    "google_vertexai": "gcp.vertex_ai",
    "ibm": "ibm.watsonx.ai",
    "mistralai": "mistral_ai",
    "xai": "x_ai",
}
"""Providers whose name in LangChain differs from that in the conventions."""

RUN: Final = "mergepoint.run_id"
STATUS: Final = "mergepoint.status"
PATH: Final = "mergepoint.path"
HOST: Final = "mergepoint.host"
KIND: Final = "mergepoint.kind"
MERGE: Final = "mergepoint.merge"
CAPTURE: Final = "mergepoint.capture"
FATE: Final = "mergepoint.fate"
SOURCE: Final = "mergepoint.source"
ATTEMPT: Final = "mergepoint.attempt"
COST: Final = "mergepoint.cost_usd"
DECISION: Final = "mergepoint.decision"
THING: Final = "mergepoint.thing"
STAGE: Final = "mergepoint.stage"
PARENTS: Final = "mergepoint.parents"
WROTE: Final = "mergepoint.wrote"
INPUTS: Final = "mergepoint.inputs"
OUTPUTS: Final = "mergepoint.outputs"
TOTALS: Final[Mapping[str, str]] = {
    "calls": "mergepoint.run.calls",
    "input_tokens": "mergepoint.run.input_tokens",
    "output_tokens": "mergepoint.run.output_tokens",
    "cost": "mergepoint.run.cost_usd",
}
"""Totals on the span of a run. Not `gen_ai.usage`, which a backend adds up over all spans."""
