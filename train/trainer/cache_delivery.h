#pragma once
// A run's token cache on machines that do not see the folder it was written to: the controller's
// machine has it, and sends it behind the bundle to the trainers that lack it. All trainers of a
// machine map one copy, at the same path.
//
// On the connection: the controller's cache.json (size, text; nothing where it has none); the
// trainer's word, kWaits as often as it likes, then kHas or kWants; for kWants all files' bytes.

#include <string>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "troupe/byte_stream.h"
#include "troupe/log.h"

namespace troupe::train {

// The controller's side. An error is the connection's, or of the files here.
Status offer_token_cache(FileSystem& files, ByteStream& stream, const std::string& folder);

// The trainer's side: returns when the cache is there, or why it is not. Where `shared`, the folder
// is the controller's own, and nothing is written. Waits while another process of this machine
// takes the same.
Status take_token_cache(FileSystem& files, ByteStream& stream, const std::string& folder,
                        bool shared, const Logger& log);

}  // namespace troupe::train
