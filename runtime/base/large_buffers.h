#pragma once
// Buffers of megabytes for bytes that travel. They are used again: the system gives fresh memory
// page by page and zeroed, which takes longer than to write what the memory is wanted for.
//
// What waits to be used again is bounded (kIdleLargeBytesMax), and goes back to the system when it
// has waited for kLargeIdleTime. Any thread.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/clock.h"

namespace troupe {

// The allocator itself keeps smaller ones.
inline constexpr std::size_t kLargeBufferBytesMin = 4u << 20;
inline constexpr std::size_t kIdleLargeBytesMax = 256u << 20;
inline constexpr Duration kLargeIdleTime = std::chrono::seconds(1);

// A buffer with room for `bytes` bytes, in huge pages where it is new. One that was used has its
// former size and content, so that nothing needs to be written twice; a new one is empty, and no
// memory before something is written into it. std::bad_alloc and std::length_error as of a vector.
std::vector<std::byte> take_large_buffer(std::uint64_t bytes);

// Keeps a buffer for the next one who takes one; frees it where it is small, or enough wait.
void give_back_large_buffer(std::vector<std::byte>&& buffer);

// Bytes that are shared, and whose buffer is given back by the last who holds them.
std::shared_ptr<const std::vector<std::byte>> share_large_buffer(std::vector<std::byte> bytes);

// How many bytes wait to be used again.
std::size_t idle_large_bytes();

}  // namespace troupe
