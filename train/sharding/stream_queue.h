#pragma once
// The communication queue of a GPU: collectives and what goes with them run on the communicator's
// stream, beside the arithmetic on another one.

#include <memory>
#include <string>

#include "train/cuda/communicator/device_communicator.h"
#include "train/cuda/device/cuda_library.h"
#include "train/sharding/communication_queue.h"

namespace troupe::train {

struct StreamQueueOptions {
  std::shared_ptr<const CudaLibrary> library;
  TroupeCudaContext* context = nullptr;
  std::string device;  // in errors: "GPU 0 (NVIDIA H200)"
  // Outermost; in asynchronous mode as long as the queue lives. Work enqueues on its stream alone.
  DeviceCommunicator* communicator = nullptr;
  // Where arithmetic is enqueued by the thread that submits.
  TroupeCudaStream* compute = nullptr;
  // How long draining may take; operations have their own deadlines.
  Duration limit = std::chrono::minutes(30);
};

// submit() runs the work at once, which enqueues and returns; on the device it comes after what is
// on `compute` by then. wait() does not keep the thread: what `compute` is given afterwards comes
// after the piece. What fails on the device is told by drain() at the latest, and nothing that was
// computed before may be believed until that was ok: it keeps the thread until the device is past
// every piece. The first failure aborts the communicator, with all of its groups. All options
// outlive the queue; the communicator may have been aborted when it ends.
//
// Reuse of memory. A piece that writes what arithmetic has read (a unit gathered into the place of
// one that was released) need not wait for that by itself: the arithmetic was enqueued before the
// release, the release came before the submission, and the piece follows everything on `compute` at
// its submission.
std::unique_ptr<CommunicationQueue> make_stream_queue(const StreamQueueOptions& options);

}  // namespace troupe::train
