#pragma once
// The bytes of a socket encrypted in place, by whoever owns it. Private to this folder and its
// tests.

#include <memory>

#include "runtime/base/byte_stream.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/tls_session.h"

namespace troupe::net {

// `session`: of this socket, its handshake done.
ByteStream make_tls_stream(UniqueFd socket, std::unique_ptr<TlsSession> session);

}  // namespace troupe::net
