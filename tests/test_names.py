"""Tasks and families are asked, not compared by name: where the code still branches over their names, and why."""

import ast
from pathlib import Path

import pytest

from keras_ctxrep import tasks
from keras_ctxrep.models.families import FAMILIES

ROOT = Path(__file__).parents[1]
TASK_BRANCHES = {
    ("keras_ctxrep/text/bundle.py", "{'tag': {'words': True}, 'answer': {'windows': True}}"): "bundles of format 1",
    ("keras_ctxrep/commands/embed.py", "tasks.get('classify')"): "texts of a table, which are of any task",
    ("keras_ctxrep/text/bundle.py", "self.task == 'embed'"): "an encoder",
}
FAMILY_BRANCHES = {
    ("keras_ctxrep/convert/allennlp.py", "bundle.family != 'elmo'"): "the format holds a biLM",
    ("keras_ctxrep/convert/bert.py", "FAMILIES['bert']"): "the formats hold a BERT",
    (
        "keras_ctxrep/commands/pretrain.py",
        "(family, name) != ('bert', 'adagrad')",
    ): "an optimizer that a family does not have",
}
# where such a word is no task: keys of answers and of columns, names of signatures, and the APIs of TF Serving
OTHER_WORDS = (
    "entry['answer']",
    "answer['answer']",
    "answer.get('answer')",
    "{'answer', 'null_score'}",
    "numbers['tag']",
    "model.signatures['embed']",
    "name in ('label', 'answer', 'error')",
    "verb not in ('predict', 'classify', 'regress')",
    "verb == 'regress'",
    "'tensorflow/serving/classify'",
    "{'embed': Embed()}",  # the table itself
)
# the tables with a line for each family: the first three are those that a new family has to stand in
TABLES = {
    "keras_ctxrep/models/families.py": "FAMILIES",
    "keras_ctxrep/text/families.py": "TEXT_SIDES",
    "export/keras_ctxrep_export/text_ops.py": "GRAPH_SIDES",
    "keras_ctxrep/models/tuning.py": "TUNING",
    "keras_ctxrep/options.py": "FAMILY_TITLES",
    "keras_ctxrep/recipes/pretraining.py": "_RECIPES",
    "keras_ctxrep/recipes/preparing.py": "_PLANS",
    "keras_ctxrep/commands/prepare.py": "KINDS and _WITHOUT",
    "keras_ctxrep/commands/pretrain.py": "KINDS",
    "keras_ctxrep/zoo/entries.py": "_SIZES and _PARAMETERS",
    "keras_ctxrep/convert/kerashub.py": "FAMILIES_THERE, which names classes of another library",
}


def strings(node):
    """The strings that an expression is, or that a tuple, a list or a set has."""
    nodes = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
    return {each.value for each in nodes if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def branches(tree, names):
    """Comparisons, memberships and look-ups with one of the names, and tables that have no other keys."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            words = set().union(*map(strings, [node.left, *node.comparators]))
        elif isinstance(node, ast.Subscript):
            words = strings(node.slice)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".get") and node.args:
            words = strings(node.args[0])
        elif isinstance(node, ast.MatchValue):
            words = strings(node.value)
        else:
            continue
        if words & names:
            yield ast.unparse(node)


def tables(tree, names):
    """Dicts whose keys are all names, beside those of dicts that are unpacked in them."""
    for node in ast.walk(tree):
        keys = [key for key in node.keys if key] if isinstance(node, ast.Dict) else []
        if keys and all(strings(key) & names for key in keys):
            yield node


def sources():
    for folder in ("keras_ctxrep", "export", "tflite"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path


def found(names, room):
    """(file, expression) of all branches over names, outside of the files of a task or a family."""
    for name, path in sources():
        if path.parent.name == room and path.stem in names:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        listed = TABLES if names >= {*FAMILIES} else ()
        of_tables = [ast.unparse(node) for node in tables(tree, names) if name not in listed]
        for text in [*branches(tree, names), *of_tables]:
            if not any(word in text for word in OTHER_WORDS):
                yield name, text


@pytest.mark.parametrize(
    ("names", "room", "allowed"),
    [({*tasks.SERVED}, "tasks", TASK_BRANCHES), ({*FAMILIES}, "models", FAMILY_BRANCHES)],
    ids=["tasks", "families"],
)
def test_branches_over_names_are_counted(names, room, allowed):
    places = [*found(names, room)]
    assert len(allowed) <= 4 and len(places) <= 4
    assert not {*places} - {*allowed}, "ask the task or the family instead"


def test_tables_with_a_line_for_each_family_are_listed():
    places = {
        name for name, path in sources() for node in tables(ast.parse(path.read_text(encoding="utf-8")), {*FAMILIES})
    }
    assert places == {*TABLES}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("if bundle.task == 'tag': pass", 1),
        ("x = 'tag' in (task, other)", 1),
        ("x = task in ('tag', 'answer')", 1),
        ("x = TASKS['tag']", 1),
        ("x = {'tag': 1}.get('tag')", 1),
        ("match task:\n    case 'tag': pass", 1),
        ("x = {'name': 'tag'}", 0),
    ],
)
def test_a_branch_is_seen(source, count):
    assert len([*branches(ast.parse(source), {*tasks.SERVED})]) == count
