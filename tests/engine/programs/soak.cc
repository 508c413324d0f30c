// The long runs of soak.h: engine_soak flood PUSHES, engine_soak bare PUSHES, engine_soak wrap OPS. Prints one line,
// and succeeds if the bounds held.
#include "sluice/tests/engine/soak.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

int main(int argc, char** argv) {
  const std::string_view what = argc == 3 ? argv[1] : "";
  const long long n = argc == 3 ? std::atoll(argv[2]) : 0;
  if (what == "flood" && n > 0) {
    const auto r = sluice::testing::flood(n);
    const bool good = r.bounded() && r.ran_all && r.most_in_flight <= 10'000;
    std::printf("flood pushes %lld start_mib %zu most_mib %zu cap_mib %zu ops_in_flight %zu seconds %.0f %s\n", n,
                r.start >> 20, r.most >> 20, r.cap >> 20, r.most_in_flight, r.seconds,
                good ? "bounded" : "NOT BOUNDED");
    return good ? 0 : 1;
  }
  if (what == "bare" && n > 0) {
    const auto r = sluice::testing::flood(n, true);
    const bool good = r.frugal();
    std::printf("bare pushes %lld engine_kib %zu ops_in_flight %zu %s\n", n, r.grown() >> 10, r.most_in_flight,
                good ? "below 1 KiB an op" : "ABOVE 1 KiB AN OP");
    return good ? 0 : 1;
  }
  if (what == "wrap" && n > 0) {
    const auto r = sluice::testing::soak(n);
    const bool good = r.flat() && r.mismatches == 0;
    std::printf("wrap ops %lld mismatches %lld early_kib %zu late_kib %zu seconds %.0f %s\n", n,
                static_cast<long long>(r.mismatches), r.early >> 10, r.late >> 10, r.seconds,
                good ? "flat" : "NOT FLAT");
    return good ? 0 : 1;
  }
  std::fputs("engine_soak flood PUSHES | bare PUSHES | wrap OPS\n", stderr);
  return 2;
}
