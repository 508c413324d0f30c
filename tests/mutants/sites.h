// Where a mutant may change the protocol, what it changes there, and how that is named: for rewrite.cc, which finds the
// places, and main.cc, which runs the mutants.
#pragma once

#include <atomic>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::mutants {

struct Site {
  std::string kind, file, function;
  std::string detail;  ///< what stands there: "tail.load acquire"; the name of a mutant made by hand
  int nth = 1;         ///< of those in the function
  int line = 0;

  /// "chain.h take: tail.load acquire -> relaxed"
  std::string named(const std::string& change) const {
    return file + " " + (function.empty() ? "" : function + ": ") + change +
           (nth > 1 ? " #" + std::to_string(nth) : "");
  }
};

using Order = std::memory_order;
inline const char* name_of(Order order) {
  switch (order) {
    case Order::relaxed:
      return "relaxed";
    case Order::consume:
      return "consume";
    case Order::acquire:
      return "acquire";
    case Order::release:
      return "release";
    case Order::acq_rel:
      return "acq_rel";
    case Order::seq_cst:
      return "seq_cst";
  }
  return "?";
}

struct Change {
  std::string what;  ///< "tail.load acquire -> relaxed"
  bool order = false;
  Order weaker = Order::relaxed;
};

/// The order that is written at a site, and what it is written for.
inline Order written_at(const Site& site) {
  const std::string_view name = std::string_view(site.detail).substr(site.detail.rfind(' ') + 1);
  for (Order o : {Order::acquire, Order::release, Order::acq_rel, Order::seq_cst})
    if (name == name_of(o)) return o;
  return Order::relaxed;
}
inline Change to_order(const Site& site, Order from, Order to) {
  return {site.detail.substr(0, site.detail.rfind(' ') + 1) + name_of(from) + " -> " + name_of(to), true, to};
}

/// The changes of a site that are least; of an order, from the one that is written there or from a weaker one.
inline std::vector<Change> changes_of(const Site& site, const Order* from = nullptr) {
  if (site.kind == "missing") return {};
  if (site.kind == "by hand") return {{site.detail}};
  if (site.kind != "order") return {{site.detail + " left out"}};
  const std::string_view operation(site.detail.data(), site.detail.rfind(' '));
  const Order start = from ? *from : written_at(site);
  std::vector<Order> to;
  switch (start) {
    case Order::seq_cst:
      to = {operation.ends_with(".load") || operation.starts_with("failure") ? Order::acquire
            : operation.ends_with(".store")                                  ? Order::release
                                                                             : Order::acq_rel};
      break;
    case Order::acq_rel:
      to = {Order::acquire, Order::release};
      break;
    case Order::acquire:
    case Order::release:
      to = {Order::relaxed};
      break;
    default:
      break;
  }
  std::vector<Change> made;
  for (Order o : to) made.push_back(to_order(site, start, o));
  return made;
}

/// equivalent.txt: names, one or several on lines of their own, then their argument on indented lines.
inline std::map<std::string, std::string> read_equivalents(const std::string& path) {
  std::map<std::string, std::string> arguments;
  std::ifstream in(path);
  std::vector<std::string> names;
  bool argued = false;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line[0] != ' ') {
      if (argued) names.clear();
      argued = false;
      names.push_back(line);
      arguments[line];
      continue;
    }
    argued = true;
    for (const std::string& n : names)
      arguments[n] += (arguments[n].empty() ? "" : " ") + line.substr(line.find_first_not_of(' '));
  }
  return arguments;
}

}  // namespace sluice::mutants
