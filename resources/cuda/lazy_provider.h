// A provider of GPUs that loads the CUDA backend when a device is used for the first time.
#pragma once

#include <functional>
#include <memory>

#include "sluice/engine/provider.h"
#include "sluice/resources/cuda/cuda.h"

namespace sluice::cuda {

/// Makes the provider that does the work. Throws where there is none, with the reason.
using MakeProvider = std::function<std::shared_ptr<Provider>()>;

/// `count` devices. An engine gets lanes and streams for them at once; `make` is called when a lane of a device runs
/// its first op, or its memory is asked for. Until then nothing was issued, so that whatever is recorded is passed.
/// Where `make` throws, every use of a device throws the same. Devices that the made provider does not have are lost.
std::shared_ptr<Provider> lazy_provider(int count, const CudaOptions& options, MakeProvider make);

/// The provider, and the stream, that does the work of one of lazy_provider()'s, which is made by that where it is not
/// there yet; another one is returned as it is. For the backend, which knows its own kind alone. May throw.
Provider& working(Provider& provider);
Stream& working(Stream& stream);

}  // namespace sluice::cuda
