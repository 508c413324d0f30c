// Tables of numbers in text, as arrays.
#pragma once

#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "sluice/ndarray/formats/csv.h"
#include "sluice/ndarray/nd_array.h"

namespace sluice::nn {

/// Columns of one length by name, each an array (n,) of cpu(0), in the order of the file or of CsvOptions::only.
///
///     const nn::Csv rows = nn::read_csv("iris.csv", {.dtype = DType::f32, .dtypes = {{"species", DType::i64}}});
///     const nn::Table table{rows.stacked({"length", "width"}), rows["species"]};
struct Csv {
  std::vector<std::pair<std::string, NDArray>> columns;

  /// Throws UsageError where there is no such column.
  const NDArray& operator[](const std::string& name) const;
  /// Columns beside each other, (n, names.size()), of one dtype. No names: all of them. Throws as above, and ArrayError
  /// for columns of several dtypes.
  NDArray stacked(const std::vector<std::string>& names = {},
                  std::source_location where = std::source_location::current()) const;
};

/// Reads a file as CsvOptions say (ndarray/formats/csv.h): f64 and a header line unless told otherwise. Blocks. Throws
/// FormatError, "PATH:LINE:COLUMN: ...".
Csv read_csv(const std::string& path, const CsvOptions& options = {},
             std::source_location where = std::source_location::current());

}  // namespace sluice::nn
