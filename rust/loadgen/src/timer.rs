//! A sleep finer than tokio's, whose wheel turns once per millisecond.

#[cfg(target_os = "linux")]
mod fine {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::unix::AsyncFd;

    /// A kernel timer that wakes the runtime through its own epoll set.
    pub(crate) struct Timer(AsyncFd<OwnedFd>);

    impl Timer {
        /// Must be made inside the runtime that awaits it.
        pub(crate) fn new() -> io::Result<Timer> {
            let fd =
                timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
            #[expect(
                deprecated,
                reason = "its successor is unsafe for types that lie about their descriptor; OwnedFd does not"
            )]
            let registered = AsyncFd::new(fd)?;
            Ok(Timer(registered))
        }

        /// Returns after `time`, some microseconds late.
        pub(crate) async fn sleep(&self, time: Duration) -> io::Result<()> {
            let value = Timespec {
                tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
                // All zeros would disarm the timer.
                tv_nsec: i64::from(time.subsec_nanos().max(1)),
            };
            let never_again = Timespec { tv_sec: 0, tv_nsec: 0 };
            let once = Itimerspec { it_interval: never_again, it_value: value };
            timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
            let mut expirations = [0_u8; 8];
            loop {
                let mut ready = self.0.readable().await?;
                match ready
                    .try_io(|fd| rustix::io::read(fd.get_ref(), &mut expirations).map_err(io::Error::from))
                {
                    Ok(read) => return read.map(drop),
                    Err(_would_block) => {}
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod fine {
    use std::io;
    use std::time::{Duration, Instant};

    /// Tokio's timer up to its last tick, then a spin that lets other tasks run.
    pub(crate) struct Timer;

    impl Timer {
        /// Never fails here.
        pub(crate) fn new() -> io::Result<Timer> {
            Ok(Timer)
        }

        /// Returns after `time`, some microseconds late.
        pub(crate) async fn sleep(&self, time: Duration) -> io::Result<()> {
            let until = Instant::now() + time;
            if let Some(coarse) = time.checked_sub(Duration::from_millis(2)) {
                tokio::time::sleep(coarse).await;
            }
            while Instant::now() < until {
                tokio::task::yield_now().await;
            }
            Ok(())
        }
    }
}

pub(crate) use fine::Timer;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Timer;

    #[test]
    fn never_early_and_reusable() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let timer = Timer::new().unwrap();
            for micros in [0, 1, 50, 700, 3000] {
                let time = Duration::from_micros(micros);
                let start = Instant::now();
                timer.sleep(time).await.unwrap();
                assert!(start.elapsed() >= time, "{micros} µs");
            }
        });
    }

    #[test]
    fn a_dropped_sleep_does_not_end_the_next_one() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let timer = Timer::new().unwrap();
            let long = timer.sleep(Duration::from_secs(60));
            assert!(tokio::time::timeout(Duration::from_millis(1), long).await.is_err());
            let start = Instant::now();
            timer.sleep(Duration::from_millis(20)).await.unwrap();
            assert!(start.elapsed() >= Duration::from_millis(20));
        });
    }
}
