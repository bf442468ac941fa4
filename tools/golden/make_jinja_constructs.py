#!/usr/bin/env python3
"""Renders the templates of tests/train/jinja/constructs.json again with jinja2 (3.1.6) and writes what comes of them.

A new construct is a new line {"template": "…"} in the file; this adds its text or error.
"""

import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

FILE = pathlib.Path(__file__).resolve().parents[2] / "tests/train/jinja/constructs.json"


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.TemplateError(message)


def main():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    told = json.loads(FILE.read_text())

    def made(template):
        try:
            return {"template": template, "out": environment.from_string(template).render(**told["context"])}
        except RecursionError:  # its words depend on where it struck
            return {"template": template, "error": "RecursionError: maximum recursion depth exceeded"}
        except Exception as error:  # whatever it is, it is the answer
            return {"template": template, "error": f"{type(error).__name__}: {error}"}

    rows = ",\n".join(json.dumps(made(one["template"])) for one in told["constructs"])
    context = json.dumps(told["context"], ensure_ascii=False)
    FILE.write_text(f'{{"context": {context},\n"constructs": [\n{rows}\n]}}\n')


main()
