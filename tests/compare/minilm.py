"""The vectors of 20 sentences: examples/finetune's against transformers', within 1e-5.

    minilm.py ids MODEL_FOLDER OUT.safetensors          # writes token ids, by the folder's tokenizer.json
    minilm.py check MODEL_FOLDER IDS.safetensors VECTORS.safetensors
"""
import os
import sys

import numpy
import safetensors.numpy

SENTENCES = """A cat sat on the mat.
The quick brown fox jumps over the lazy dog.
Yes.
Where is the nearest station?
The train to the coast leaves at a quarter past nine, unless it rains, in which case nobody knows when it will leave.
She sells sea shells on the sea shore.
Prices fell by 3.7 % in 1998.
Attention is all you need!
C++ programs are compiled; Python programs are not.
Water boils at 100 degrees Celsius.
"To be, or not to be": that is the question.
Le chat est assis sur le tapis.
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.
東京は日本の首都です。
supercalifragilisticexpialidocious
He said nothing, and she said nothing, and so they sat there, and said nothing, until it was dark.
email me at someone@example.com
The model is trained on one billion pairs of sentences.
I am not unhappy with the result.
1 2 3 4 5 6 7 8 9 10""".split("\n")
TOLERANCE = 1e-5


def write_ids(folder, out):
    import tokenizers
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    tokenizer.no_padding()
    lists = [encoded.ids for encoded in tokenizer.encode_batch(SENTENCES)]
    ids = numpy.zeros((len(lists), max(map(len, lists))), numpy.int64)
    for row, one in zip(ids, lists):
        row[:len(one)] = one
    safetensors.numpy.save_file({"test.ids": ids}, out)


def check(folder, ids, vectors):
    import torch
    import transformers
    ids = torch.from_numpy(safetensors.numpy.load_file(ids)["test.ids"])
    ours = safetensors.numpy.load_file(vectors)["vectors"]
    theirs = {}
    for dtype in torch.float32, torch.float64:
        model = transformers.AutoModel.from_pretrained(folder, dtype=dtype).eval()
        mask = (ids != 0).to(torch.int64)
        with torch.no_grad():
            hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
            weight = mask.unsqueeze(-1).to(dtype)
            mean = (hidden * weight).sum(1) / weight.sum(1)
        theirs[dtype] = torch.nn.functional.normalize(mean, dim=1).numpy()
    assert ours.shape == theirs[torch.float32].shape == (20, 384), ours.shape
    error = {dtype: float(numpy.abs(ours - one).max()) for dtype, one in theirs.items()}
    own = float(numpy.abs(theirs[torch.float32] - theirs[torch.float64]).max())
    print(f"minilm: {len(ours)} sentences of up to {ids.shape[1]} tokens: vectors differ from transformers' "
          f"{transformers.__version__} (PyTorch {torch.__version__}) by at most {error[torch.float32]:.2e} in f32, "
          f"{error[torch.float64]:.2e} from its f64 (whose f32 differs from it by {own:.2e})")
    assert max(error.values()) <= TOLERANCE, error


if sys.argv[1] == "ids":
    write_ids(*sys.argv[2:])
else:
    check(*sys.argv[2:])
