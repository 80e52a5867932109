"""What a NEFF calls the arguments and outputs of a program. Knows positions, not tensors.

The HLO asks for these names in the attributes neff_input_names and neff_output_names, as AWS's
nkipy and torch-neuronx do, so that tensors are told apart by name and not by an order.
"""

INPUT_ATTRIBUTE = "neff_input_names"
OUTPUT_ATTRIBUTE = "neff_output_names"

ALIASED = ".must_alias_input"
"""How nkipy has the name of an input end whose buffer an output takes. wanc asks for none such."""


def input_name(position: int) -> str:
    """A program's argument: weights, then inputs, from 0."""
    return f"input{position}"


def output_name(position: int) -> str:
    """A program's output, from 0."""
    return f"output{position}"
