"""Text answers of the offline model: to a conversation, and to the prompts of recipe blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mergepoint.offline.critics import (
    apply_edits,
    chosen_in,
    critique,
    edits_in,
    form_of,
    options_in,
)
from mergepoint.offline.language import (
    Brief,
    ConversationReading,
    Kind,
    attached_text,
    brief_of,
    capitalize_first,
    content_words,
    is_instruction,
    is_picture,
    join_list,
    kind_of,
    lowercase_first,
    normalize,
    parts_in,
    phrases,
    pick,
    requested_count,
    sentences,
    subject_of,
    subject_words,
    title_case,
    titles_for,
    word_set,
    words_of,
)

INTRODUCTION = (
    "This is the offline model. It isn't a language model, but its rules can analyze a brief, list "
    "options, choose, find a title, describe a picture, criticize and revise text, and write an "
    "image prompt."
)
_GREETINGS = word_set("hello hi hey good thanks thank")
_VIEWS = (
    "{subject}, seen close, {like} large in the foreground",
    "{subject}, small in a wide frame with open space above",
    "{subject}, seen over the shoulder of someone who has just arrived",
    "{subject}, seen from high above, whole and readable like a map",
    "{subject}, cut off by the edges of the frame so that it seems to continue",
    "{subject}, at the moment before anything happens",
)
_APPROACHES = (
    "start with one person on one ordinary day, and show where {subject} appears",
    "tell the story of {subject} in order: before, during, and after",
    "compare {subject} with something that everybody knows, and name the one difference",
    "show {subject} as a whole first, then a single part of it",
    "begin with the question about {subject} that people are afraid to ask",
    "describe what would be missing without {subject}",
)
_OUTLINE = (
    "Begin like this. {choice}.",
    "Say in plain words what is meant by {subject}.",
    "Give one example that can be seen or touched.",
    "Name what is most often misunderstood about it.",
    "Say what changes once it is understood.",
    "End with the one sentence to remember.",
)
_WITH_TITLE = re.compile(r"poster|cover|flyer|leaflet|\bad\b|banner|card|invitation")


def answer(conversation: ConversationReading) -> str:
    """Return the answer to a conversation; it is never empty."""
    if (stage := stage_of(conversation)) is not None:
        return answer_stage(stage)
    return answer_as(kind_of(conversation.task), conversation)


def answer_as(kind: Kind, conversation: ConversationReading) -> str:
    """Return the answer to a conversation as if its task were of some kind."""
    return _WRITERS[kind](conversation)


# Choices, titles, outlines, questions, and revisions.


def _revise(conversation: ConversationReading) -> str:
    text = conversation.work or attached_text(conversation.task)
    if not text:
        return "There is no text to revise yet."
    edits = edits_in(conversation.task) or critique(conversation).edits
    return apply_edits(text, edits)


def _choose(conversation: ConversationReading) -> str:
    brief = brief_of(conversation)
    options = options_in(conversation.task) or options_in(conversation.work)
    if not options:
        return f"There are no options to choose from; the subject is {brief.head or 'unknown'}."
    return options[_best_option(options, brief)]


def _best_option(options: Sequence[str], brief: Brief) -> int:
    wanted = set(content_words(" ".join([brief.subject, brief.mood, *brief.likes])))
    excluded = set(content_words(" ".join(brief.dislikes)))
    # An exclusion outweighs a wish, so that no disliked option wins by its other words.
    scores = [
        len(wanted.intersection(words)) - 2 * len(excluded.intersection(words))
        for words in map(content_words, options)
    ]
    return scores.index(max(scores))


def _list_options(conversation: ConversationReading) -> str:
    brief = brief_of(conversation)
    subject = subject_of(conversation, brief)
    templates = _VIEWS if is_picture(brief, conversation.task) else _APPROACHES
    start = templates.index(pick(templates, subject))
    like = next((like for like in brief.likes if like.endswith("s")), "one detail")
    options = [
        templates[(start + number) % len(templates)].format(subject=subject, like=like)
        for number in range(requested_count(conversation.task, 3))
    ]
    lines = [f"{number}. {capitalize_first(text)}." for number, text in enumerate(options, start=1)]
    if re.search(r"\bcho(?:ice|ose|sen)\b", parts_in(conversation.task).instructions.lower()):
        lines += ["", f"Choice: {_best_option(options, brief) + 1}"]
    return "\n".join(lines)


def _title(conversation: ConversationReading) -> str:
    brief = brief_of(conversation)
    return titles_for(brief).get("full") or title_case(subject_of(conversation, brief))


def _outline(conversation: ConversationReading) -> str:
    brief = brief_of(conversation)
    subject = subject_of(conversation, brief)
    choice = _concept_of(conversation, brief)
    if choice == subject and conversation.work and len(sentences(conversation.work)) == 1:
        choice = conversation.work.strip().rstrip(".")
    if choice == subject:
        choice = f"one thing about {subject} that everybody has seen"
    # An outline of several points ends with the closing point.
    count = requested_count(conversation.task, 4)
    points = [*_OUTLINE[: count - 1], _OUTLINE[-1]] if count > 1 else _OUTLINE[:1]
    lines = (point.format(subject=subject, choice=capitalize_first(choice)) for point in points)
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))


def _find_answer(conversation: ConversationReading) -> str:
    """Return the sentence of the conversation that shares most words with the question."""
    wanted = set(content_words(parts_in(conversation.task).instructions))
    best, most_shared = "", 0
    for kind, text in conversation.messages:
        # The question must not answer itself.
        is_task = text is conversation.task and kind == "human"
        for sentence in sentences(attached_text(text) if is_task else text):
            shared = len(wanted.intersection(content_words(sentence)))
            if shared > most_shared and not sentence.endswith("?") and sentence[0] != "#":
                best, most_shared = sentence, shared
    if best:
        return best
    asked = subject_words(conversation.task)
    if not asked or asked[0] in _GREETINGS:
        return INTRODUCTION
    return f"Nothing in this conversation answers the question about {join_list(asked[:4])}."


def _introduce(conversation: ConversationReading) -> str:
    """Return the answer to a task without a rule: the request, and what the model can't do."""
    words = subject_words(conversation.task)
    if not words or words[0] in _GREETINGS:
        return INTRODUCTION
    opening = next(iter(sentences(parts_in(conversation.task).instructions)), "")
    asked = brief_of(conversation).subject if is_instruction(opening) else ""
    request = asked or opening.rstrip(".")
    return f"Request: {request}. The offline model has no rule for it; use a language model."


# Pictures.


def _concept_of(conversation: ConversationReading, brief: Brief) -> str:
    """Return the option chosen last in the conversation, otherwise the subject."""
    for kind, text in reversed(conversation.messages):
        if kind == "ai" and (chosen := chosen_in(text)):
            chosen = chosen.rstrip(".")
            if chosen.lower().startswith(brief.subject.lower()):
                return brief.subject + chosen[len(brief.subject) :]
            return lowercase_first(chosen)
    return subject_of(conversation, brief)


def _analyze(conversation: ConversationReading) -> str:
    """Return the facts of the brief in labelled lines, and the open points."""
    brief = brief_of(conversation)
    facts = {
        "Subject": subject_of(conversation, brief),
        "Format": brief.format,
        "Audience": brief.audience,
        "Mood": brief.mood,
        "Scene": ", ".join(brief.details),
        "Include": ", ".join(brief.likes),
        "Leave out": ", ".join(brief.dislikes),
    }
    lines = [f"{label}: {text}" for label, text in facts.items() if text]
    missing = [label.lower() for label in ("Audience", "Mood") if not facts[label]]
    return "\n".join([*lines, f"Still open: {join_list(missing)}"] if missing else lines)


def _message(conversation: ConversationReading) -> str:
    """Return the one thing that the audience should remember."""
    brief = brief_of(conversation)
    subject = subject_of(conversation, brief)
    verb = f"find {subject} {brief.mood}" if brief.mood else f"remember {subject}"
    audience = capitalize_first(brief.audience) or "The audience"
    return f"{audience} should {verb}. Nothing else counts."


def _describe(conversation: ConversationReading) -> str:
    brief = brief_of(conversation)
    if not is_picture(brief, conversation.task):
        return _introduce(conversation)
    parts = [f"The {brief.format or 'picture'} shows {_concept_of(conversation, brief)}."]
    if brief.details:
        parts.append(f"In view: {', '.join(brief.details)}.")
    if brief.mood:
        parts.append(f"It feels {brief.mood}.")
    return " ".join(parts)


def _image_prompt(conversation: ConversationReading) -> str:
    """Return a prompt for an image model: what to show, then what to exclude."""
    brief = brief_of(conversation)
    concept = _concept_of(conversation, brief)
    link = "for" if brief.format in ("ad", "invitation", "logo") else "of"
    parts = [f"{capitalize_first(brief.format or 'image')} {link} {concept}"]
    parts += [*brief.details, *brief.likes]
    if brief.mood:
        parts.append(f"{brief.mood} mood")
    if _WITH_TITLE.search(brief.format):
        answers = (text for kind, text in reversed(conversation.messages) if kind == "ai")
        title = next((text.strip(' \n"') for text in answers if form_of(text) == "title"), "")
        parts += [f'the title "{title}" set into the picture'] if title else []
    return ", ".join([*parts, *(f"no {dislike}" for dislike in brief.dislikes)])


_WRITERS: dict[Kind, Callable[[ConversationReading], str]] = {
    "critique": lambda conversation: str(critique(conversation)),
    "revise": _revise,
    "choose": _choose,
    "analyze": _analyze,
    "image_prompt": _image_prompt,
    "title": _title,
    "options": _list_options,
    "message": _message,
    "outline": _outline,
    "question": _find_answer,
    "describe": _describe,
}


# Prompts of recipe blocks: an instruction, with its data in tags.


_DATA_TAGS = (
    *("question", "task", "part", "point", "text", "draft", "answer", "first", "second"),
    *("texts", "parts", "answers", "questions", "ways", "plan"),
)
_DATA = re.compile(rf"^<({'|'.join(_DATA_TAGS)})>\n(.*?)\n</\1>", re.MULTILINE | re.DOTALL)
_ANY_TAG = re.compile(r"^<([a-z]+)>\n(.*?)\n</\1>", re.MULTILINE | re.DOTALL)
_VOICE = re.compile(r"\bAnswer\b.{0,30}\bas ([^.,\n]+)")
_CLAUSE_END = re.compile(r"(?<=[.!?;])\s+|,?\s+and then\s+")
_QUESTION_OPENING = re.compile(
    r"^(?:please\s+)?(?:(?:what|why|how|who|when|where|which)\b"
    r"(?:\s+(?:is|are|do|does|did|can|much|many))?\s*)",
    re.IGNORECASE,
)
_STEPS = (
    "Say in plain words what is meant by {subject}.",
    "Give one example of {subject} that can be seen or touched.",
    "Name what is most often misunderstood about {subject}.",
    "Say what changes once {subject} is understood.",
)
_FEEDBACK = ("feedback", "lessons", "tool", "reason", "answers")


@dataclass(frozen=True, slots=True)
class StagePrompt:
    """The parts of a recipe block's prompt; a missing part is empty.

    `text` is the text to work on, `part` the part of the task that this stage handles, and
    `feedback` are the remarks on the text from people, tools, and earlier attempts.
    """

    instruction: str
    tags: Mapping[str, str]
    question: str
    part: str
    text: str
    texts: tuple[str, ...]
    feedback: str

    @classmethod
    def of(cls, instruction: str, tags: Mapping[str, str]) -> StagePrompt:
        """Read the tags of a prompt."""
        listed = tags.get("texts", tags.get("parts", tags.get("answers", "")))
        return cls(
            instruction,
            tags,
            question=tags.get("question", tags.get("task", "")),
            part=tags.get("part", tags.get("point", "")),
            text=tags.get("text", tags.get("draft", tags.get("answer", ""))),
            texts=options_in(listed) or ((listed.removeprefix("1. "),) if listed else ()),
            feedback="\n".join([tags[name] for name in _FEEDBACK if name in tags]),
        )

    def about(self, text: str, *, feedback: str = "") -> ConversationReading:
        """Return the question and text as a conversation that ends with the instruction."""
        asked = (("human", self.question or text), ("ai", text))
        messages = tuple([message for message in asked if message[1]])
        return ConversationReading(messages, f"{self.instruction}\n{feedback}".strip(), text)

    @property
    def conversation(self) -> ConversationReading:
        """Return the prompt as a conversation, for the other rules."""
        return self.about(self.text, feedback=self.feedback)

    def items(self, name: str) -> tuple[str, ...]:
        """Return the items of the list in a tag."""
        lines = self.tags.get(name, "").replace(" / ", "\n").splitlines()
        return tuple([item for line in lines for item in phrases(line)[:1]])


@lru_cache(maxsize=64)
def stage_of(conversation: ConversationReading) -> StagePrompt | None:
    """Return the parts of a recipe block's prompt, or None for any other conversation."""
    asked = [text for kind, text in conversation.messages if kind in ("human", "ai")]
    # Blocks send a single user message. Several messages are a conversation that contains tags.
    if len(asked) != 1 or not _DATA.search(conversation.task):
        return None
    tags = {label: text.strip() for label, text in _ANY_TAG.findall(conversation.task)}
    instruction = _ANY_TAG.sub("", parts_in(conversation.task).instructions).strip()
    return StagePrompt.of(instruction or normalize(_ANY_TAG.sub("", conversation.task)), tags)


def answer_stage(stage: StagePrompt) -> str:
    """Return the text answer to a recipe block's prompt."""
    words = set(words_of(stage.instruction))
    # The first match wins. Prompts for revisions, steps and parts contain the question too, so
    # plain questions come last.
    if stage.texts and (stage.tags.keys() & {"texts", "parts"} or "better" in words):
        return _combine(stage)
    if "lessons" in words and stage.text:
        return _lessons(stage)
    if kind_of(stage.instruction) == "revise" and stage.text:
        return apply_edits(stage.text, edits_in(stage.feedback))
    if "ways" in stage.tags and "plan" not in words:
        return _ways(stage, specific="fit" in words)
    if "steps" in stage.tags:
        return _next_step(stage)
    if {"write", "questions"} <= words or "questions" in stage.tags:
        return _questions(stage)
    if stage.part or "before" in stage.tags:
        return f"{capitalize_first((stage.part or stage.question).rstrip('.'))}."
    return _answer_or_critique(stage, words)


def _answer_or_critique(stage: StagePrompt, words: set[str]) -> str:
    if "principle" in words and "principle" not in stage.tags:
        return f"The principle of {_subject(stage)} follows from its purpose."
    if kind_of(stage.instruction) == "outline" and "plan" not in stage.tags:
        return "\n".join(f"{n}. {step}" for n, step in enumerate(parts_of(stage, 4), 1))
    if stage.question and kind_of(stage.instruction) != "critique":
        return _answer_question(stage)
    return str(critique(stage.conversation))


def score(stage: StagePrompt, text: str) -> float:
    """Return the quality of text from 0 to 1: requested words, minus due edits."""
    due = critique(stage.about(text)).edits
    requested = _requested_words(stage, text)
    found = set(content_words(text)).intersection(requested)
    # 0.95 is the threshold of `passes`, so that text without due edits passes.
    share = len(found) / len(requested) if requested else 0.95
    return round(share * 0.9 ** len(due), 3)


def better(stage: StagePrompt) -> str:
    """Return which of two texts has the higher score; "first" if they are equal."""
    first, second = (stage.tags.get(name, "") for name in ("first", "second"))
    return "second" if score(stage, second) > score(stage, first) else "first"


def passes(stage: StagePrompt) -> bool:
    """Return whether the text is acceptable by the tool's result, otherwise by its score."""
    if "tool" in stage.tags:
        return "wrong" not in words_of(stage.tags["tool"])
    # Without a question the best score is 0.95, and one due edit is acceptable.
    return score(stage, stage.text) >= (0.95 if stage.question else 0.8)


def reason(stage: StagePrompt) -> str:
    """Return the reason for a judgment: the first issue of the text."""
    if "tool" in stage.tags:
        return stage.tags["tool"].partition("\n")[0]
    if not stage.text:
        return "It has most of the requested words."
    found = content_words(stage.text)
    for word in _requested_words(stage, stage.text):
        if word not in found:
            return f'"{word}" was asked for and is not in it.'
    return critique(stage.conversation).issues[0].removeprefix("none: ")


def best_text(stage: StagePrompt) -> int:
    """Return the number of the best of several texts, counted from 1."""
    scores = [score(stage, text) for text in stage.texts] or [0.0]
    return scores.index(max(scores)) + 1


def parts_of(stage: StagePrompt, limit: int) -> list[str]:
    """Return the parts of a task: its own sentences, otherwise general steps for its subject."""
    own = [part.strip() for part in _CLAUSE_END.split(stage.question) if content_words(part)]
    if len(own) > 1:
        return [capitalize_first(part.rstrip(" ;")) for part in own[:limit]]
    return [step.format(subject=_subject(stage)) for step in _STEPS[: min(limit, 3)]]


def follow_up(stage: StagePrompt) -> str:
    """Return a question to answer before the stage's own question."""
    return f"What is meant by {_subject(stage)}?"


def _requested_words(stage: StagePrompt, text: str) -> tuple[str, ...]:
    brief = brief_of(stage.about(text)) if stage.question else None
    return content_words(f"{brief.subject} {brief.mood}") if brief else ()


def _subject(stage: StagePrompt) -> str:
    question = stage.question or stage.text
    conversation = ConversationReading((("human", question),), question, "")
    brief = brief_of(conversation)
    if is_instruction(question) or brief.format:
        return subject_of(conversation, brief)
    bare = _QUESTION_OPENING.sub("", question.strip()).rstrip(" ?.!")
    return lowercase_first(re.sub(r"\s+(?:works?|happens?)$", "", bare)) or "it"


def _combine(stage: StagePrompt) -> str:
    """Return one text from several: the best title, otherwise all sentences without repetitions."""
    texts = [re.sub(r"^\(score [\d.]+\) ", "", text) for text in stage.texts]
    if all(form_of(text) == "title" for text in texts):
        best = texts[best_text(stage) - 1]
        if "answers" not in stage.tags:
            return best
        return apply_edits(best, critique(stage.about(best)).edits)
    return " ".join(dict.fromkeys(part for text in texts for part in sentences(text)))


def _answer_question(stage: StagePrompt) -> str:
    """Answer the question in the requested voice, or improve the earlier answer."""
    if stage.text:
        return apply_edits(stage.text, edits_in(stage.feedback))
    question = stage.question
    sources = "\n".join(stage.tags.get(name, "") for name in ("sources", "notes")).strip()
    messages = (("human", sources), ("human", question)) if sources else (("human", question),)
    text = answer(ConversationReading(messages, question, ""))
    voice = _VOICE.search(stage.instruction)
    if kind_of(question) == "title" and voice:
        titles = list(titles_for(brief_of(stage.conversation)).values())
        text = pick(titles or [text], voice[1].strip())
    return apply_edits(text, edits_in(stage.feedback))


def _lessons(stage: StagePrompt) -> str:
    earlier = [f"- {lesson}" for lesson in stage.items("lessons")]
    due = [f"- {edit}" for edit in critique(stage.conversation).edits]
    return "\n".join(dict.fromkeys([*earlier, *due])) or "- none"


def _ways(stage: StagePrompt, *, specific: bool) -> str:
    ways = stage.items("ways")
    if not specific:
        return "\n".join(f"- {way}" for way in ways[:3])
    return "\n".join(f"- Of {_subject(stage)}: {lowercase_first(way)}" for way in ways)


def _next_step(stage: StagePrompt) -> str:
    # One line per step: the next step follows from their number.
    done = stage.tags["steps"].splitlines()
    return _STEPS[min(len(done), len(_STEPS) - 1)].format(subject=_subject(stage))


def _questions(stage: StagePrompt) -> str:
    if "questions" in stage.tags:
        lines = [line.lstrip("- ") for line in stage.tags["questions"].splitlines() if line.strip()]
        return "\n".join(f"- {line} The text doesn't answer this." for line in lines)
    words = content_words(stage.text)[:3] or ("it",)
    return "\n".join(f'- Is "{word}" what was asked for?' for word in words)
