// Streams and events.
#include <chrono>

#include "double.h"

using namespace cuda_double;

namespace {

/// The point after all that was issued, for a host that waits or asks.
std::uint64_t last_point(World& world, CUstream_st& stream) {
  {
    std::lock_guard lock(stream.mutex);
    if (stream.issued == stream.issued_at_point) return stream.point;
  }
  return world.record(stream);
}

struct Recorded {
  StreamHandle stream;
  std::uint64_t point = 0;
};
Recorded recorded(CUevent_st& event) {
  std::lock_guard lock(event.mutex);
  return {event.stream, event.point};
}

}  // namespace

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return call(Fault::stream, [&](World& world, ThreadState& thread) {
    if (!stream || flags > cudaStreamNonBlocking) throw Refused{cudaErrorInvalidValue};
    if (flags != cudaStreamNonBlocking) {
      world.refuse(cudaErrorInvalidValue, "a stream that waits for the null stream is made: cudaStreamNonBlocking");
    }
    world.check_health(thread.device);
    *stream = world.make_stream(thread.device, flags, priority).get();
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call(kReleases, [&](World& world, ThreadState&) { world.destroy(stream); });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return call(Fault::any, [&](World& world, ThreadState&) {
    const StreamHandle stream = world.stream(handle, "cudaStreamSynchronize");
    const std::uint64_t point = last_point(world, *stream);
    world.await(*stream, point);
    world.has_synchronized(*stream);
    world.host_knows(stream, point, true);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return call(Fault::any, [&](World& world, ThreadState&) {
    const StreamHandle stream = world.stream(handle, "cudaStreamQuery");
    const std::uint64_t point = last_point(world, *stream);
    if (!world.is_passed(*stream, point)) throw Refused{cudaErrorNotReady};
    world.host_knows(stream, point);
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned flags) {
  return call(Fault::any, [&](World& world, ThreadState&) {
    if (flags != cudaEventWaitDefault) throw Refused{cudaErrorInvalidValue};
    const StreamHandle stream = world.stream(handle, "cudaStreamWaitEvent");
    const Recorded from = recorded(*world.event(event_handle, "cudaStreamWaitEvent", stream.get()));
    // A card takes this for an event that is long over.
    if (!from.stream) return world.report_in(*stream, "a stream waits for an event that was never recorded");
    world.wait(*stream, *from.stream, from.point);
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call(Fault::stream, [&](World& world, ThreadState& thread) {
    if (!event || flags > (cudaEventBlockingSync | cudaEventDisableTiming)) throw Refused{cudaErrorInvalidValue};
    world.check_health(thread.device);
    *event = world.make_event(thread.device, flags);
  });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  return call(Fault::any, [&](World& world, ThreadState&) {
    const StreamHandle stream = world.stream(stream_handle, "cudaEventRecord");
    const auto event = world.event(handle, "cudaEventRecord");
    if (event->device != stream->device) {
      world.refuse(cudaErrorInvalidResourceHandle, "an event of device " + std::to_string(event->device) +
                                                       " is recorded in a stream of device " +
                                                       std::to_string(stream->device));
    }
    std::shared_ptr<std::atomic<std::int64_t>> time;
    if (!(event->flags & cudaEventDisableTiming)) {
      time = std::make_shared<std::atomic<std::int64_t>>(0);
      world.issue(*stream, [time] { time->store(std::chrono::steady_clock::now().time_since_epoch().count()); }, {});
    }
    const std::uint64_t point = world.record(*stream);
    std::lock_guard lock(event->mutex);
    event->stream = stream;
    event->point = point;
    event->time = time;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return call(Fault::any, [&](World& world, ThreadState&) {
    const Recorded at = recorded(*world.event(handle, "cudaEventQuery"));
    if (!at.stream) return;
    if (!world.is_passed(*at.stream, at.point)) throw Refused{cudaErrorNotReady};
    world.host_knows(at.stream, at.point);
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return call(Fault::any, [&](World& world, ThreadState&) {
    const Recorded at = recorded(*world.event(handle, "cudaEventSynchronize"));
    if (!at.stream) return world.report("a thread waits for an event that was never recorded");
    world.await(*at.stream, at.point);
    world.host_knows(at.stream, at.point);
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return call(kReleases, [&](World& world, ThreadState&) { world.destroy(handle); });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call(Fault::any, [&](World& world, ThreadState&) {
    if (!milliseconds) throw Refused{cudaErrorInvalidValue};
    std::int64_t times[2];
    const cudaEvent_t handles[2] = {start, end};
    for (int i = 0; i < 2; ++i) {
      const auto event = world.event(handles[i], "cudaEventElapsedTime");
      const Recorded at = recorded(*event);
      std::lock_guard lock(event->mutex);
      if (!at.stream || !event->time) throw Refused{cudaErrorInvalidResourceHandle};
      if (!world.is_passed(*at.stream, at.point)) throw Refused{cudaErrorNotReady};
      times[i] = event->time->load();
    }
    *milliseconds = static_cast<float>(static_cast<double>(times[1] - times[0]) / 1e6);
  });
}

CUresult cuStreamWriteValue64(CUstream handle, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return static_cast<CUresult>(call_without_context(Fault::write, [&](World& world, ThreadState&) {
    if (!has_context_here()) {
      world.refuse(cudaErrorDeviceUninitialized, "cuStreamWriteValue64 on a thread that has no context: cudaSetDevice");
    }
    const StreamHandle stream = world.stream(handle, "cuStreamWriteValue64");
    if (flags != CU_STREAM_WRITE_VALUE_DEFAULT || address % 8 != 0) throw Refused{cudaErrorInvalidValue};
    auto* const word = reinterpret_cast<std::uint64_t*>(address);
    const Range block = world.pinned_block(word);
    if (!block.begin || reinterpret_cast<std::byte*>(word + 1) > block.begin + block.bytes) {
      world.refuse(cudaErrorInvalidValue, "cuStreamWriteValue64 to what is no word of pinned memory");
    }
    // The point is passed before the word can be seen: who has seen the word may name it (cuda_double/order.h).
    const std::uint64_t point = world.record(*stream);
    {
      std::lock_guard lock(stream->mutex);
      stream->word = word;
      stream->written.emplace_back(value, point);
      if (stream->written.size() > 4096) stream->written.pop_front();
    }
    world.issue(*stream, [word, value] { __atomic_store_n(word, value, __ATOMIC_RELEASE); }, {});
  }));
}
