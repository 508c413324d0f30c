// When rows that are written in other rows (Operator::compose) are made of them.
#pragma once

namespace sluice::detail {

/// By SLUICE_COMPOSE: never (0), where no kernel takes the call (1, and where it is unset), or always, for tests:
/// kernels of such rows are left out then.
enum class Composing { never, where_needed, always };
/// Read once. Throws UsageError for other texts.
Composing composing();

}  // namespace sluice::detail
