"""Chat templates: what they may use, what they may not, and how failures are told."""

from datetime import datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from engine.errors import CoreError, RequestError
from engine.text.chat import ChatTemplate, TemplateError

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ALTERNATING = """{{ bos_token }}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + message.content | trim + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message.content | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""
TOOLS = """{%- set ns = namespace(seen=false) %}
{%- if tools %}<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
{% endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- generation %}
        {{- "<a>" }}
        {%- if message.content %}{{ message.content }}{% endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set ns.seen = true %}
            {{- '<call>{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}</call>' }}
        {%- endfor %}
        {{- "</a>" }}
        {%- endgeneration %}
    {%- elif message.role == "skip" %}
        {%- continue %}
    {%- else %}
        {{- "<" + message.role + ">" + message.content }}
    {%- endif %}
{%- endfor %}
{%- if ns.seen %}!{% endif %}
{%- if add_generation_prompt %}<a>{% endif %}
"""
USER = {"role": "user", "content": "caf\u00e9 <b> & \"x\" 'y'"}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"a": 1}'}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "7"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"d": "\u00fc<"}}}


def render(source: str, messages: list[dict[str, Any]], *args: Any, **kwargs: Any) -> str:
    return ChatTemplate(source, TOKENS).render(messages, *args, **kwargs)


def oracle(source: str, messages: list[dict[str, Any]], **kwargs: Any) -> str:
    texts, _ = render_jinja_template([messages], chat_template=source, **TOKENS, **kwargs)
    result: str = texts[0]
    return result


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("source", [CHATML, ALTERNATING, TOOLS])
def test_equals_transformers(source: str, prompt: bool) -> None:
    answer = {"role": "assistant", "content": " I see. \n"}
    for messages in ([USER], [USER, answer], [USER, answer, USER]):
        expected = oracle(source, messages, add_generation_prompt=prompt)
        assert render(source, messages, add_generation_prompt=prompt) == expected


def test_tools_equal_transformers() -> None:
    expected = oracle(TOOLS, [USER], tools=[TOOL], add_generation_prompt=True)
    assert render(TOOLS, [USER], [TOOL]) == expected
    assert "\u00fc<" in expected


@pytest.mark.parametrize("source", [CHATML, ALTERNATING, TOOLS])
@pytest.mark.parametrize("content", ["I think ", "I think", "a\n\n", "x <|im_end|>"])
def test_continuing_the_last_message_equals_transformers(source: str, content: str) -> None:
    messages = [USER, {"role": "assistant", "content": content}]
    expected = oracle(source, messages, continue_final_message=True)
    result = render(source, messages, add_generation_prompt=False, continue_final_message=True)
    assert result == expected
    assert messages[-1]["content"] == content  # the caller's message is as it was


def test_template_variables_reach_the_template() -> None:
    assert render("{{ mode }}|{{ tools is none }}", [USER], mode="fast") == "fast|True"


def test_null_content_and_tool_calls_reach_a_template_that_knows_them() -> None:
    source = (
        "{% for m in messages %}{% if m.content is none %}NULL{% else %}{{ m.content }}{% endif %}"
        "{% for c in m.tool_calls or [] %}{{ c.id }}{{ c.function.name }}"
        "{{ c.function.arguments }}{% endfor %}{% endfor %}"
    )
    text = render(source, [USER, CALLING, RESULT], add_generation_prompt=False)
    assert text == USER["content"] + 'NULLc1weather{"a": 1}7'


def test_arguments_become_an_object_for_a_template_that_encodes_them() -> None:
    text = render(TOOLS, [USER, CALLING, RESULT])
    assert '<a><call>{"name": "weather", "arguments": {"a": 1}}</call></a>' in text
    assert "None" not in text


def test_a_template_without_tool_calls_gets_them_as_text() -> None:
    text = render(CHATML, [USER, CALLING, RESULT])
    call = '<tool_call>\n{"name": "weather", "arguments": {"a": 1}}\n</tool_call>'
    assert f"<|im_start|>assistant\n{call}<|im_end|>" in text
    assert "None" not in text
    assert "null" not in text


def test_null_content_alone_is_empty_text() -> None:
    text = render(CHATML, [USER, {"role": "assistant", "content": None}])
    assert "<|im_start|>assistant\n<|im_end|>" in text


def test_other_null_keys_are_left_out() -> None:
    source = "{% for m in messages %}{{ m.name is defined }}{% endfor %}"
    assert render(source, [{**USER, "name": None}]) == "False"


def test_the_templates_own_sentence_is_the_error() -> None:
    with pytest.raises(TemplateError) as caught:
        render(ALTERNATING, [USER, USER])
    assert str(caught.value) == "Conversation roles must alternate user/assistant"
    assert isinstance(caught.value, RequestError)


@pytest.mark.parametrize(
    "source",
    [
        "{{ cycler.__init__.__globals__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['__builtins__'] }}",
        "{{ strftime_now.__code__.co_code }}",
        "{% set ns = namespace() %}{{ ns.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ ('x' * 1000000) * 1000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ 'x'.center(10 ** 10) }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
        "{% for i in range(10 ** 9) %}{{ i }}{% endfor %}",
    ],
)
def test_what_is_not_allowed_fails_cleanly(source: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(source, [USER])
    assert "{{" not in str(caught.value)
    assert "function" not in str(caught.value)


@pytest.mark.parametrize(
    "source", ["{{ messages[0].content + 1 }}", "{{ 1 / 0 }}", "{{ absent.key }}", "{{ x() }}"]
)
def test_any_failure_is_a_request_error_without_source(source: str) -> None:
    with pytest.raises(TemplateError, match="cannot render these messages") as caught:
        render(source, [USER])
    assert "{{" not in str(caught.value)


def test_endless_output_is_cut_off() -> None:
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{{ t }}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError, match="too long"):
        render(loop, [USER], t="x" * (1 << 20))


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% generation %}", "{% bogus %}"])
def test_a_template_that_does_not_compile_is_a_core_error(source: str) -> None:
    with pytest.raises(CoreError, match=r"chat_template\.jinja, line 1"):
        ChatTemplate(source, TOKENS)


def test_a_template_of_absurd_size_is_a_core_error() -> None:
    with pytest.raises(CoreError, match="longer"):
        ChatTemplate("x" * (1 << 21), TOKENS)


def test_reserved_names_cannot_be_replaced() -> None:
    template = ChatTemplate(CHATML, TOKENS)
    for name in ("messages", "tools"):
        with pytest.raises(TemplateError, match=name):
            template.render([USER], **{name: []})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("messages", "message"),
    [([], "last message"), ([{"role": "user", "content": [{"type": "text"}]}], "last message")],
)
def test_continuing_needs_text(messages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        render(CHATML, messages, add_generation_prompt=False, continue_final_message=True)


def test_continuing_and_a_generation_prompt_exclude_each_other() -> None:
    with pytest.raises(TemplateError, match="both"):
        render(CHATML, [USER], continue_final_message=True)


def test_a_template_that_drops_the_last_message_cannot_continue_it() -> None:
    with pytest.raises(TemplateError, match="leaves out"):
        render("x", [USER], add_generation_prompt=False, continue_final_message=True)


def test_the_clock_is_that_of_the_caller() -> None:
    template = ChatTemplate(
        "{{ strftime_now('%d %b %Y') }}", TOKENS, now=lambda: datetime(2026, 7, 26)
    )
    assert template.render([USER]) == "26 Jul 2026"
