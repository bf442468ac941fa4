#pragma once
// Somebody who speaks the handshake byte by byte, with a token that is right or not, and does not
// wait to be let in before he goes on.

#include <optional>
#include <string>
#include <vector>

#include "runtime/net/transport.h"
#include "runtime/wire/types.h"
#include "troupe/unique_fd.h"

namespace troupe::tests {

// A connected socket: TCP on loopback, or the local one where the address names it.
UniqueFd dial(const net::Address& address);
// Sends all of it, as far as the other side takes it. False: it does not.
bool say_bytes(const UniqueFd& socket, const wire::Bytes& bytes);
// Until the other side ends, or `patience` is over (then a failed check).
wire::Bytes hear_all(const UniqueFd& socket);
// Exactly so many bytes, or fewer where the other side ended.
wire::Bytes hear(const UniqueFd& socket, std::size_t count);

// Each message with its length before it.
wire::Bytes frames_of(const std::vector<wire::Bytes>& messages);

// The client's part of the handshake: the first bytes; and, to the listener's answer to them, the
// proof for a target by this token.
wire::Bytes hello_bytes();
wire::Bytes proof_bytes(const net::Token& token, const wire::Bytes& challenge,
                        const std::string& target);

}  // namespace troupe::tests
