"""Chat rendering for DeepSeek-V4.1: vLLM's own, after refusing media by name where it sees none.

Left alone, vLLM answers an image with "<model> is not a multimodal model", which says neither what
was refused nor that the model itself could see it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.renderers import deepseek_v4

# Part types that carry text, or name a tool; every other part is media or unknown to vLLM.
TEXT_PART_TYPES = frozenset(
    {"text", "input_text", "output_text", "refusal", "thinking", "tool_reference"}
)
_MEDIA = ("image", "audio", "video")
# vLLM 0.33 gave V4.1 a renderer of its own.
_Upstream = getattr(deepseek_v4, "DeepseekV41Renderer", deepseek_v4.DeepseekV4Renderer)


class TextOnlyRenderer(_Upstream):
    """vLLM's renderer for this model's chat format, for requests that hold text only.

    Where vLLM's own class of the model serves, which sees images, it is vLLM's and no more.
    """

    def render_messages(self, messages: list[Any], params: Any) -> Any:
        return super().render_messages(self._checked(messages), params)

    async def render_messages_async(self, messages: list[Any], params: Any) -> Any:
        return await super().render_messages_async(self._checked(messages), params)

    def _checked(self, messages: list[Any]) -> list[Any]:
        return messages if self.model_config.is_multimodal_model else refuse_media(messages)


def refuse_media(messages: Iterable[Any]) -> list[Any]:
    """The messages, with the parts of each as a list (the server hands over one-shot iterators).

    Raises:
        VLLMValidationError: a part is an image, audio or video; names it and where it is.
    """
    checked = []
    for index, message in enumerate(messages):
        content = message.get("content")
        if content is None or isinstance(content, str):
            checked.append(message)
            continue
        parts = list(content)
        for part in parts:
            kind = media_kind(part)
            if kind is not None:
                raise VLLMValidationError(
                    f"messages[{index}] holds {kind} input, which is refused: DeepSeek-V4.1 is "
                    "served as text only here. Send text parts only",
                    parameter="messages",
                )
        checked.append({**message, "content": parts})
    return checked


def media_kind(part: Any) -> str | None:
    """What kind of media a content part is, by its type or, where that is absent, by its keys."""
    if not isinstance(part, dict) or part.get("type") in TEXT_PART_TYPES:
        return None
    named = part.get("type")
    for name in [named] if isinstance(named, str) else list(part):
        for medium in _MEDIA:
            if medium in name:
                return medium
    return None
