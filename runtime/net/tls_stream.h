#pragma once
// The bytes of a socket encrypted in place, by whoever owns it. Private to this folder and its
// tests.

#include <memory>

#include "runtime/net/tls_session.h"
#include "troupe/byte_stream.h"
#include "troupe/unique_fd.h"

namespace troupe::net {

// `session`: of this socket, its handshake done.
ByteStream make_tls_stream(UniqueFd socket, std::unique_ptr<TlsSession> session);

}  // namespace troupe::net
