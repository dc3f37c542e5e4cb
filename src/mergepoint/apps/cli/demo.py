"""`mergepoint demo`: the canonical pipeline on an example, without a key."""

from __future__ import annotations

from mergepoint.apps.cli.options import (
    BaseUrlOption,
    JsonOption,
    ModelOption,
    OutOption,
    QuietOption,
    StoreOption,
    TracebackOption,
    YesOption,
)

GRAPH = "image_prompt"
EXAMPLES = (
    "mergepoint demo",
    "mergepoint demo --model openai:gpt-5-mini",
    "mergepoint demo --model ollama:llama3.2 --base-url http://localhost:11434",
)


def demo(
    *,
    model: ModelOption = "offline",
    base_url: BaseUrlOption = None,
    yes: YesOption = False,
    out: OutOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Run the graph 'image_prompt' on an example brief: from a brief to a refined image prompt.

    The offline model answers unless you name another. It is not a language model: its text shows
    which words go where, and costs nothing.
    """
    from mergepoint.apps.cli.command import Command
    from mergepoint.apps.cli.homes import Homes
    from mergepoint.apps.cli.inputs import read_inputs
    from mergepoint.apps.cli.output import tell_fact
    from mergepoint.apps.cli.run import job_of, run_job
    from mergepoint.tree.target import resolve_target

    example = resolve_target(GRAPH).example
    inputs = read_inputs([], [example] if example else [])
    command = Command(target=GRAPH, model=model, base_url=base_url)
    job = job_of(command, Homes.at(out, store), quiet=quiet, inputs=inputs)
    if not quiet:
        shown = {"graph": GRAPH, **inputs, "model": model}
        for label, value in shown.items():
            tell_fact(label, " ".join(str(value).split()))
        if model == "offline":
            tell_fact("", "(it is not a language model, and needs no key)", style="yellow")
    run_job(job, yes=yes, json=json, quiet=quiet)
