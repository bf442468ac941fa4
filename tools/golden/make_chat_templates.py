#!/usr/bin/env python3
"""Writes train/data/chat_template_table.cpp from the text templates of LLaMA-Factory's golden values.

    tools/golden/make_chat_templates.py ../shared/data/lf_data_golden/templates.json > train/data/chat_template_table.cpp

Beside those, templates that differ from one of them in their name alone when only text is trained (EXTRA).
"""
import json
import subprocess
import sys

EXTRA = {"gemma3": "gemma"}
STYLES = {"Template": "kPlain", "Llama2Template": "kInFirst", "ReasoningTemplate": "kReasoning",
          "Glm47ReasoningTemplate": "kReasoning"}
DEFAULT_THOUGHTS = ["<think>\n", "\n</think>\n\n"]
DEFAULT_CALLS = ["<tool_call>", "</tool_call>"]


def slots(pieces):
    """Slots as one text: {{bos}}, {{eos}}, {{token:X}}; {{|}} between two texts that are encoded apart."""
    out, after_text = "", False
    for piece in pieces:
        if isinstance(piece, str):
            out += ("{{|}}" if after_text else "") + piece
            after_text = True
            continue
        after_text = False
        if "token" in piece:
            out += "{{token:%s}}" % piece["token"]
        elif piece["special"] == ["bos_token"]:
            out += "{{bos}}"
        elif piece["special"] == ["eos_token"]:
            out += "{{eos}}"
        # Any other word is one that LLaMA-Factory looks for in vain: phi_small's prefix.
    return out


def quoted(text):
    return json.dumps(text, ensure_ascii=False)


def fields_of(name, t):
    made = {key: slots(value) for key, value in t["slots"].items()}
    default_answer = "{{content}}" if t["efficient_eos"] else "{{content}}{{eos}}"
    fields = [("name", name)]
    if STYLES[t["cls"]] != "kPlain":
        fields.append(("style", "Style::" + STYLES[t["cls"]]))
    for key, default in (("prefix", ""), ("system", "{{content}}"), ("user", "{{content}}"), ("assistant", default_answer),
                         ("observation", made["user"]), ("function", made["assistant"]), ("tools", "")):
        if made[key] != default:
            fields.append((key, made[key]))
    if t["default_system"]:
        fields.append(("default_system", t["default_system"]))
    if t["stop_words"]:
        assert not any(" " in word for word in t["stop_words"])
        fields.append(("stop_words", " ".join(t["stop_words"])))
    for key, words, default in (("thought", t["thought_words"], DEFAULT_THOUGHTS), ("call", t["tool_call_words"], DEFAULT_CALLS)):
        if words != default:
            fields += [(key + "_begin", words[0]), (key + "_end", words[1])]
    if t["cls"] == "Glm47ReasoningTemplate":
        fields.append(("empty_thought", t["thought_words"][1]))
    assert t["tool_format"] in (t["function_tool_format"], None)
    if t["function_tool_format"] != "default":
        fields.append(("tool_format", t["function_tool_format"]))
    for key, flag in (("replace_eos", "replace_eos"), ("efficient_eos", "efficient_eos"), ("replace_jinja", "replace_jinja_template")):
        if t[flag]:
            fields.append((key, True))
    return fields


def main():
    templates = json.load(open(sys.argv[1], encoding="utf-8"))["text"]
    for name, like in EXTRA.items():
        templates[name] = templates[like]
    rows = {name: fields_of(name, templates[name]) for name in sorted(templates)}
    named = {
        "kChatmlSystem": "<|im_start|>system\n{{content}}<|im_end|>\n",
        "kChatmlUser": "<|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n",
        "kChatmlAnswer": "{{content}}<|im_end|>\n",
        "kChatmlTool": "<|im_start|>tool\n{{content}}<|im_end|>\n<|im_start|>assistant\n",
        "kQwenToolAnswer": "<|im_start|>user\n<tool_response>\n{{content}}\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    }
    names = {text: name for name, text in named.items()}
    out = ["// The templates that are built in: written by tools/golden/make_chat_templates.py, not by hand.", "",
           '#include "train/data/chat_template_row.h"', "", "namespace troupe::train {", "namespace {", "",
           "using Style = ChatTemplate::Style;", ""]
    out += ["constexpr const char* %s = %s;" % (name, quoted(text)) for name, text in named.items()]
    out += ["", "constexpr ChatTemplateRow kRows[] = {"]
    for row in rows.values():
        parts = []
        for key, value in row:
            text = "true" if value is True else value if key == "style" else names.get(value) or quoted(value)
            parts.append(".%s = %s" % (key, text))
        out.append("{" + ", ".join(parts) + "},")
    out += ["};", "", "}  // namespace", "", "std::span<const ChatTemplateRow> chat_template_rows() { return kRows; }", "",
            "}  // namespace troupe::train"]
    text = subprocess.run(["clang-format", "--assume-filename=train/data/chat_template_table.cpp"], input="\n".join(out) + "\n",
                          text=True, capture_output=True, check=True).stdout
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
