// TERRACE_API marks what the shared library exports; everything else is built with hidden
// visibility, so that an engine's own Abseil, protobuf or RocksDB never meets ours.
#pragma once

#define TERRACE_API [[gnu::visibility("default")]]
