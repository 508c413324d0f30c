#include "sluice/nn/data/csv.h"

#include "sluice/engine/errors.h"
#include "sluice/ndarray/called.h"
#include "sluice/nn/data/table.h"
#include "sluice/operators/shaping.h"

namespace sluice::nn {

const NDArray& Csv::operator[](const std::string& name) const {
  std::string all;
  for (const auto& [of, column] : columns) {
    if (of == name) return column;
    all += (all.empty() ? "" : ", ") + of;
  }
  throw UsageError("[nn::Csv] no column '" + name + "' among: " + all);
}

NDArray Csv::stacked(const std::vector<std::string>& names, std::source_location where) const {
  const sluice::detail::Called called("nn::Csv::stacked", where);
  const DeviceScope host(cpu(0));
  std::vector<NDArray> chosen;
  for (const std::string& name : names) chosen.push_back((*this)[name]);
  if (names.empty()) {
    for (const auto& [name, column] : columns) chosen.push_back(column);
  }
  for (const NDArray& column : chosen) {
    if (column.dtype() != chosen[0].dtype()) {
      throw ArrayError(
          "nn::Csv::stacked", where,
          "columns of " + std::string(name_of(chosen[0].dtype())) + " and " + std::string(name_of(column.dtype())));
    }
  }
  return stack(chosen, 1);
}

Csv read_csv(const std::string& path, const CsvOptions& options, std::source_location where) {
  const sluice::detail::Called called("nn::read_csv", where);
  Csv csv;
  for (auto& [name, tensor] : load_csv(path, options)) csv.columns.emplace_back(name, column(std::move(tensor)));
  return csv;
}

}  // namespace sluice::nn
