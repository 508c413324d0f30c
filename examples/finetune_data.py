"""Made-up sentences for finetune.cc: who acts? 4 classes, the animal that does it, among two that are named.

    python3 finetune_data.py TOKENIZER.json OUT.safetensors [--seed N]

Half of the sentences are passive or cleft, so that neither the words nor their order alone tell. The verbs of the test
are not among those of training. TOKENIZER.json is beside MiniLM's model.safetensors. Needs numpy, safetensors and
tokenizers from PyPI. Writes train.ids, train.labels, test.ids and test.labels, i64; ids (sentences, tokens), 0 behind the
end.
"""
import argparse
import itertools
import random

import numpy
import safetensors.numpy
import tokenizers

ANIMALS = ["cat", "dog", "horse", "mouse"]
FORMS = ["The {a} {v} the {b}{end}.", "The {b} was {v} by the {a}{end}.", "It was the {a} that {v} the {b}{end}.",
         "It was the {b} that the {a} {v}{end}."]
TRAIN = ["chased", "watched", "followed", "pushed", "greeted", "ignored", "feared", "trusted", "licked", "missed"]
TEST = ["kicked", "helped", "admired", "heard"]
ENDS = ["", " in the garden", " this morning", " near the old barn", " all day", " without a sound", " once more"]


def sentences(verbs, count, draw):
    every = [(f.format(a=a, b=b, v=v, end=e), ANIMALS.index(a))
             for f, (a, b), v, e in itertools.product(FORMS, itertools.permutations(ANIMALS, 2), verbs, ENDS)]
    return draw.sample(every, count)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("tokenizer")
    options.add_argument("out")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    draw = random.Random(given.seed)
    tokenizer = tokenizers.Tokenizer.from_file(given.tokenizer)
    tokenizer.no_padding()
    arrays = {}
    for name, verbs, count in [("train", TRAIN, 1600), ("test", TEST, 640)]:
        texts, labels = zip(*sentences(verbs, count, draw))
        lists = [encoded.ids for encoded in tokenizer.encode_batch(texts)]
        ids = numpy.zeros((count, max(map(len, lists))), numpy.int64)
        for row, one in zip(ids, lists):
            row[:len(one)] = one
        arrays[name + ".ids"], arrays[name + ".labels"] = ids, numpy.array(labels, numpy.int64)
    safetensors.numpy.save_file(arrays, given.out)
    print(given.out, {name: array.shape for name, array in arrays.items()})


main()
