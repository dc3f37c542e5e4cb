"""image_prompt: from a brief to the prompt of a picture, in six stages that each refine a draft."""

from __future__ import annotations

from functools import cache

from mergepoint import Block, Graph, Template, compile_graph
from mergepoint.patterns import refined_stage

SYSTEM = """\
You work in a small studio that writes prompts for an image model. Answer with the text that is \
asked for and nothing else: no greeting, no remark about the task, no markdown. Keep to the brief. \
What the client likes belongs in the picture; what the client dislikes stays out of it."""

MATERIAL = """\
<brief>
{{ brief }}
</brief>
<likes>
{{ likes }}
</likes>
<dislikes>
{{ dislikes }}
</dislikes>"""

STAGES = {
    "initial_prompt": """\
Analyse the brief below before anything is drawn. Write labelled lines, one each: the subject, the \
format, the audience, the mood, what happens in the scene, what to include, what to leave out. \
Where the brief is silent, say so in a line of its own. Do not write the prompt of the picture \
yet.""",
    "section_2_choice": """\
Sketch three concepts for this picture, numbered, one sentence each. They differ in what is seen \
and from where, not in style. End with a line that starts with the word Choice and a colon and \
gives the number of the concept that serves the brief best.""",
    "section_2b_title": """\
Write one title for the chosen concept, at most eight words. It names what is seen, as the poster \
of a film or the spine of a book would. Only the title, without quotation marks.""",
    "section_3_message_focus": """\
State the message of this picture in two sentences at most: what the audience should understand \
and feel. One message only; it has to survive a look of three seconds.""",
    "section_4_concise_description": """\
Describe the picture in three to six plain sentences: what is shown and from where, what stands in \
front, what the light does, what the mood is. It follows the chosen concept and carries the \
message. Only what can be seen.""",
    "image_prompt_creation": """\
Write the final image prompt, one paragraph of short phrases with commas between them. Start with \
the format and the chosen concept; go on with the scene, what the client likes, the mood, the \
light and the composition that were agreed on; close with what must not appear, each as "no" and \
the thing. Name only what can be seen.""",
}

CONDITIONS = {"likes": "none stated", "dislikes": "none stated"}


def _stage(name: str, instruction: str, *, capture_key: str | None = None) -> Block:
    prompt = Template(f"{instruction}\n\n{MATERIAL}", defaults=CONDITIONS)
    return refined_stage(name, prompt, system=SYSTEM, capture_key=capture_key)


*_early, _last = STAGES.items()

tree = Block(
    [
        *(_stage(name, instruction) for name, instruction in _early),
        _stage(*_last, capture_key="image_prompt"),
    ],
    inputs=("brief", ("likes", ""), ("dislikes", "")),
)


@cache
def graph() -> Graph:
    """Return the compiled graph for a LangGraph server, compiled at the first call."""
    return compile_graph(tree, model="offline")
