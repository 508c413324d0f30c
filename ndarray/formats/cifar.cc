#include "sluice/ndarray/formats/cifar.h"

#include <string>

namespace sluice::formats {

void parse_cifar(const std::filesystem::path& path, std::span<const std::byte> bytes, const CifarLabels& kind,
                 CifarRecords& to) {
  constexpr std::size_t kImage = 3 * 32 * 32;
  const std::size_t labels = kind[1] > 0 ? 2 : 1, record = labels + kImage, records = bytes.size() / record;
  if (records == 0 || bytes.size() % record != 0) {
    throw FormatError(path, "holds " + std::to_string(bytes.size()) + " bytes, wanted records of " +
                                std::to_string(record) + " bytes, at least one: record " + std::to_string(records) +
                                " has " + std::to_string(bytes.size() % record));
  }
  for (std::size_t i = 0; i < records; ++i) {
    for (std::size_t k = 0; k < labels; ++k) {
      const int label = std::to_integer<int>(bytes[i * record + k]);
      if (label >= kind[k]) {
        throw FormatError(path, "record " + std::to_string(i) + " (byte " + std::to_string(i * record + k) +
                                    "): label " + std::to_string(label) + ", wanted 0 to " +
                                    std::to_string(kind[k] - 1));
      }
    }
  }
  to.images.bytes.reserve(to.images.bytes.size() + records * kImage);
  to.labels.bytes.reserve(to.labels.bytes.size() + records);
  for (std::size_t i = 0; i < records; ++i) {
    const auto image = bytes.subspan(i * record + labels, kImage);
    to.images.bytes.insert(to.images.bytes.end(), image.begin(), image.end());
    to.labels.bytes.push_back(bytes[i * record + labels - 1]);
  }
  to.images.shape[0] += static_cast<std::int64_t>(records);
  to.labels.shape[0] += static_cast<std::int64_t>(records);
}

}  // namespace sluice::formats
