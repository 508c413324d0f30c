// Words of draws by vectors of 64 bits.
#include "sluice/operators/backends/cpu/dispatch.h"
#include "sluice/operators/backends/cpu/draws.h"

#if SLUICE_X86_KERNELS
#include <immintrin.h>
#endif

namespace sluice::cpu_backend {
namespace {

#if SLUICE_X86_KERNELS
/// Each lane of 64 bits has a word of one block in its low half. What products leave in the high half is never read:
/// a product takes low halves. So no round packs or unpacks words, which compilers' vector code of ElementKey::blocks
/// does. Two groups of four blocks go together, so that their products overlap.
[[gnu::target(SLUICE_TARGET_AVX2)]] void words_by_lanes(const ElementKey& key, std::uint64_t first, std::int64_t blocks,
                                                        std::uint32_t* out) {
  const __m256i multiplier0 = _mm256_set1_epi32(static_cast<int>(0xD2511F53u)),
                multiplier1 = _mm256_set1_epi32(static_cast<int>(0xCD9E8D57u));
  for (std::int64_t done = 0; done < blocks; done += 8, first += 8, out += 32) {
    __m256i word[2][4];
    for (std::uint64_t g = 0; g < 2; ++g) {
      const __m256i block =
          _mm256_add_epi64(_mm256_set1_epi64x(static_cast<long long>(first + 4 * g)), _mm256_setr_epi64x(0, 1, 2, 3));
      word[g][0] = block;
      word[g][1] = _mm256_srli_epi64(block, 32);
      word[g][2] = _mm256_set1_epi64x(static_cast<long long>(key.high()));
      word[g][3] = _mm256_srli_epi64(word[g][2], 32);
    }
    auto k0 = static_cast<std::uint32_t>(key.key()), k1 = static_cast<std::uint32_t>(key.key() >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
      const __m256i round0 = _mm256_set1_epi32(static_cast<int>(k0)), round1 = _mm256_set1_epi32(static_cast<int>(k1));
      for (auto& w : word) {
        const __m256i a = _mm256_mul_epu32(multiplier0, w[0]), b = _mm256_mul_epu32(multiplier1, w[2]);
        w[0] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), w[1]), round0);
        w[1] = b;
        w[2] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), w[3]), round1);
        w[3] = a;
      }
    }
    for (int g = 0; g < 2; ++g) {
      // Words 0 and 1 of four blocks, then 2 and 3; and block by block.
      const __m256i left = _mm256_blend_epi32(word[g][0], _mm256_slli_epi64(word[g][1], 32), 0xAA);
      const __m256i right = _mm256_blend_epi32(word[g][2], _mm256_slli_epi64(word[g][3], 32), 0xAA);
      const __m256i even = _mm256_unpacklo_epi64(left, right), odd = _mm256_unpackhi_epi64(left, right);
      auto* const to = reinterpret_cast<__m256i*>(out + 16 * g);
      _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
  }
}
#endif

struct WordBatches {
  SLUICE_KERNEL_BODY void operator()(const ElementKey* key, std::uint64_t first, std::int64_t batches,
                                     std::uint32_t* out) const {
    for (std::int64_t b = 0; b < batches; ++b, first += kDrawBlocks, out += 4 * kDrawBlocks) {
      DrawWords words;
      key->blocks(first, words);
      for (int k = 0; k < kDrawBlocks; ++k) {
        for (int i = 0; i < 4; ++i) out[4 * k + i] = words[i][k];
      }
    }
  }
};

}  // namespace

void draw_words(const ElementKey& key, std::uint64_t first, std::int64_t batches, std::uint32_t* out) {
#if SLUICE_X86_KERNELS
  if (instruction_set_in_use() != InstructionSet::plain) {
    return words_by_lanes(key, first, batches * kDrawBlocks, out);
  }
#endif
  dispatch(WordBatches{}, &key, first, batches, out);
}

}  // namespace sluice::cpu_backend
