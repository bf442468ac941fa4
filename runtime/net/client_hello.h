#pragma once
// What a listener looks at before it knows a TLS peer: the name in its first message, found in
// bytes that stay in the socket (RFC 8446, 4.1.2 and 5.1; RFC 6066, 3). Private to this folder.

#include <cstddef>
#include <span>
#include <string>

namespace troupe::net {

struct ClientHello {
  enum class State {
    kIncomplete,  // `bytes_wanted` are needed
    kComplete,    // `server_name`; empty: it names none
    kMalformed,   // whatever follows
  };
  State state = State::kMalformed;
  std::size_t bytes_wanted = 0;
  std::string server_name;
};

// The first byte of every TLS connection, and of none of ours without it.
inline constexpr std::byte kTlsFirstByte{0x16};

// `data`: from the beginning of the connection. The message is one record, of at most
// limits::kClientHelloBytesMax; never reads beyond what the lengths in it allow.
ClientHello parse_client_hello(std::span<const std::byte> data);

}  // namespace troupe::net
