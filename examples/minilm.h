// all-MiniLM-L6-v2 (Wang et al., MiniLM, 2020; Reimers and Gurevych, Sentence-BERT, 2019) as a plain struct: a BERT
// whose result is one vector of length 1 for each sentence. Its file is read as it is.
#pragma once

#include "sluice/sluice.h"

using namespace sluice;  // for programs of one file

struct BertBlock {
  nn::Size width, heads, inner;
  double eps;
  nn::SelfAttention attention{width, heads};
  nn::LayerNorm norm1{width, eps}, norm2{width, eps};
  nn::Linear up{width, inner}, down{inner, width};
  NDArray operator()(NDArray x, const NDArray& mask) const {
    x = norm1(x + attention(x, {.mask = mask}));
    return norm2(x + down(gelu(up(x))));
  }
};

struct MiniLm {
  std::int64_t vocabulary = 30522, positions = 512, layers = 6, heads = 12, width = 384, inner = 1536;
  double eps = 1e-12;
  nn::Embedding word{vocabulary, width}, position{positions, width}, type{2, width};
  nn::LayerNorm norm{width, eps};
  std::vector<BertBlock> blocks = nn::repeat(layers, BertBlock{width, heads, inner, eps});
  /// ids (sentences, tokens), 0 behind the end of a sentence, to (sentences, width).
  NDArray operator()(const NDArray& ids) const {
    const NDArray there = ids != 0, mask = there.unsqueeze(1).unsqueeze(1);
    const NDArray first = zeros({1}, DType::i64);
    NDArray x = norm(word(ids) + position(arange(ids.size(1))) + type(first));
    for (const BertBlock& block : blocks) x = block(x, mask);
    const NDArray weight = there.to(x.dtype()).unsqueeze(2);
    const NDArray mean = sum(x * weight, 1) / sum(weight, 1);
    return mean / sqrt(sum(square(mean), 1, {.keep = true}));
  }
};

inline void load_minilm(const std::string& file, const MiniLm& net) {
  const std::string layer = "encoder.layer.*.", self = layer + "attention.self.";
  nn::load(file, {{"", net}},
           {.rename = {{"embeddings.word_embeddings.", "word."},
                       {"embeddings.position_embeddings.", "position."},
                       {"embeddings.token_type_embeddings.", "type."},
                       {"embeddings.LayerNorm.", "norm."},
                       {{self + "query.", self + "key.", self + "value."},
                        "blocks.*.attention.qkv.",
                        nn::Qkv{.heads = net.heads}},
                       {layer + "attention.output.dense.", "blocks.*.attention.proj."},
                       {layer + "attention.output.LayerNorm.", "blocks.*.norm1."},
                       {layer + "intermediate.dense.", "blocks.*.up."},
                       {layer + "output.dense.", "blocks.*.down."},
                       {layer + "output.LayerNorm.", "blocks.*.norm2."}},
            .ignore = "*.position_ids|pooler.*",
            .cast = true});
}
