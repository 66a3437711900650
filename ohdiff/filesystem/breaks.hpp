// Breaks that a thread takes in long work, so that others who wait for its core get it at once.
//
// The kernel gives a waking thread the core of an idle-class one only if its bookkeeping of fair shares agrees; where
// it does not, the waking thread waits for the next tick, 4 ms at 250 Hz. A thread that sleeps for an instant several
// times a tick leaves the core to whoever waits.
#pragma once

namespace ohdiff::posix {

// Sleeps if this thread has worked for long enough since its last break; nothing, but for one read of a flag, while
// nobody has asked for breaks. To be called between two steps of a long loop.
void break_if_due();

}  // namespace ohdiff::posix
