//! Which address of a name is connected to: all are tried, each a little after the one before it,
//! and the first that answers is taken ("Happy Eyeballs", RFC 8305).

use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;
use std::{fmt, io};

/// Addresses of a name that are tried at most; who serves the name chooses how many it has.
pub const MAX_ADDRESSES: usize = 8;
/// How long an address may take until the next one is tried beside it (RFC 8305, section 5:
/// Connection Attempt Delay).
pub const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Longest time for all addresses of a name together. The last of [`MAX_ADDRESSES`] begins after
/// 1.75 s and still has time for four transmissions of a SYN (at 0, 1, 3 and 7 s).
pub const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// An address that was tried.
#[derive(Debug)]
struct Attempt {
    address: SocketAddr,
    /// `None` while it has neither answered nor failed.
    failure: Option<io::Error>,
}

impl Attempt {
    fn kind(&self) -> io::ErrorKind {
        self.failure
            .as_ref()
            .map_or(io::ErrorKind::TimedOut, io::Error::kind)
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failure {
            Some(failure) => write!(f, "{} ({failure})", self.address),
            None => write!(f, "{} (no answer)", self.address),
        }
    }
}

/// No address of a name answered. The addresses have a cause each, so their causes are part of the
/// text; there is no one `source`.
#[derive(Debug)]
struct NoneAnswered {
    tried: Vec<Attempt>,
    /// Addresses over the limit.
    not_tried: usize,
}

impl std::error::Error for NoneAnswered {}

impl fmt::Display for NoneAnswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tried.is_empty() {
            return f.write_str("the name has no address; check its A and AAAA records in the DNS");
        }
        let tried: Vec<String> = self.tried.iter().map(Attempt::to_string).collect();
        let (seconds, tried) = (CONNECT_LIMIT.as_secs(), tried.join(", "));
        write!(f, "tried for at most {seconds} s: {tried}")?;
        if self.not_tried > 0 {
            let more = self.not_tried;
            write!(
                f,
                "; {more} more not tried, as the limit is {MAX_ADDRESSES} addresses of a name"
            )?;
        }
        f.write_str(
            "; check that these are the server's addresses, that it listens on this port, and the routes and firewalls on \
             the way",
        )
    }
}

/// Connects to the first of a name's addresses that answers, and gives up the other attempts.
///
/// An address is tried [`ATTEMPT_DELAY`] after the one before it, or as soon as any attempt fails;
/// earlier attempts go on. So a dead address hides no other, and one that is slow still wins if no
/// other answers before. IPv4 and IPv6 take turns, so that a family without a route uses up
/// neither the time nor the limit of addresses. All together take [`CONNECT_LIMIT`] at most.
///
/// `sleep` is the runtime's clock, `connect` its connection to one address. Cancel-safe: the
/// attempts end with the future.
///
/// # Errors
/// No address answered, or there is none ([`io::ErrorKind::NotFound`]). The text names each address
/// that was tried, with its failure, and what to check; the kind is that of the last address.
pub async fn first_to_answer<T, C, S>(
    addresses: Vec<SocketAddr>,
    sleep: impl Fn(Duration) -> S,
    connect: impl Fn(SocketAddr) -> C,
) -> io::Result<T>
where
    C: Future<Output = io::Result<T>>,
    S: Future<Output = ()>,
{
    let mut queue = in_turns(addresses);
    let not_tried = queue.len().saturating_sub(MAX_ADDRESSES);
    queue.truncate(MAX_ADDRESSES);
    let mut tried = Vec::new();
    let attempts = try_all(queue, &mut tried, &sleep, connect);
    let answered = match select(pin!(attempts), pin!(sleep(CONNECT_LIMIT))).await {
        Either::Left((answered, _)) => answered,
        Either::Right(_) => None,
    };
    if let Some(connected) = answered {
        return Ok(connected);
    }
    let kind = tried.last().map_or(io::ErrorKind::NotFound, Attempt::kind);
    Err(io::Error::new(kind, NoneAnswered { tried, not_tried }))
}

/// Tries the addresses in their order; `None` if each has failed. Has no time limit of its own.
async fn try_all<T, C, S>(
    mut queue: VecDeque<SocketAddr>,
    tried: &mut Vec<Attempt>,
    sleep: &impl Fn(Duration) -> S,
    connect: impl Fn(SocketAddr) -> C,
) -> Option<T>
where
    C: Future<Output = io::Result<T>>,
    S: Future<Output = ()>,
{
    let mut running = FuturesUnordered::new();
    loop {
        if let Some(address) = queue.pop_front() {
            let (index, attempt) = (tried.len(), connect(address));
            running.push(async move { (index, attempt.await) });
            tried.push(Attempt {
                address,
                failure: None,
            });
        }
        let pause = if queue.is_empty() {
            CONNECT_LIMIT
        } else {
            ATTEMPT_DELAY
        };
        match select(running.next(), pin!(sleep(pause))).await {
            Either::Left((Some((_, Ok(connected))), _)) => return Some(connected),
            Either::Left((Some((index, Err(error))), _)) => {
                if let Some(attempt) = tried.get_mut(index) {
                    attempt.failure = Some(error);
                }
            }
            Either::Left((None, _)) => return None,
            Either::Right(_) => {}
        }
    }
}

/// The families in turns, beginning with that of the first address; otherwise the order stays (RFC
/// 8305, section 4).
fn in_turns(addresses: Vec<SocketAddr>) -> VecDeque<SocketAddr> {
    let begins_with_ipv6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (preferred, others): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.is_ipv6() == begins_with_ipv6);
    let (mut turns, mut others) = (VecDeque::new(), others.into_iter());
    for address in preferred {
        turns.push_back(address);
        turns.extend(others.next());
    }
    turns.extend(others);
    turns
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, sleep};

    /// How an address behaves.
    #[derive(Clone, Copy)]
    enum Does {
        Nothing,
        Refuses,
        /// It answers after so many milliseconds.
        Answers(u64),
    }

    use Does::{Answers, Nothing, Refuses};

    /// Which of these addresses is connected to, by its place, and after how many milliseconds.
    async fn first_of(all: &[Does]) -> (io::Result<u16>, u128) {
        let addresses = (0..)
            .zip(all)
            .map(|(place, _)| SocketAddr::from(([192, 0, 2, 1], place)));
        let connect = |address: SocketAddr| {
            let does = all[usize::from(address.port())];
            async move {
                match does {
                    Nothing => std::future::pending().await,
                    Refuses => Err(io::ErrorKind::ConnectionRefused.into()),
                    Answers(after) => {
                        sleep(Duration::from_millis(after)).await;
                        Ok::<_, io::Error>(address.port())
                    }
                }
            }
        };
        let began = Instant::now();
        let first = first_to_answer(addresses.collect(), sleep, connect).await;
        (first, began.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_does_not_answer_hides_no_other_of_its_name() {
        // tokio's timers may be a millisecond late, each.
        for (all, place, after) in [
            (vec![Nothing, Answers(10)], 1, 260),
            (vec![Refuses, Answers(10)], 1, 10),
            (vec![Nothing, Refuses, Answers(10)], 2, 260),
            (vec![Nothing, Nothing, Nothing, Answers(10)], 3, 760),
        ] {
            let (first, took) = first_of(&all).await;
            assert_eq!(first.expect("one answers"), place);
            assert!((after..after + 10).contains(&took), "{took} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_slow_goes_on_beside_the_next() {
        for all in [
            vec![Answers(9_000), Nothing, Refuses],
            vec![Answers(400), Answers(200)],
            vec![Answers(9_000)],
        ] {
            assert_eq!(first_of(&all).await.0.expect("the first answers"), 0);
        }
        let (second, took) = first_of(&[Answers(9_000), Answers(200)]).await;
        assert_eq!(second.expect("the second answers"), 1);
        assert!(took < 500, "{took} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_of_dead_addresses_takes_the_limit_once_and_the_error_names_each() {
        let (none, took) = first_of(&[Nothing; MAX_ADDRESSES]).await;
        let error = none.expect_err("nobody answers");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!((10_000..10_010).contains(&took), "{took} ms");
        let text = error.to_string();
        for place in 0..MAX_ADDRESSES {
            let named = format!("192.0.2.1:{place} (no answer)");
            assert!(text.contains(&named), "{text}");
        }
        assert!(text.starts_with("tried for at most 10 s: "), "{text}");
        assert!(text.contains("check that"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_whose_addresses_refuse_fails_at_once() {
        let (none, took) = first_of(&[Refuses, Refuses]).await;
        let error = none.expect_err("both refuse");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(took < 10, "{took} ms");
        let text = error.to_string();
        assert!(
            text.contains("192.0.2.1:0 (connection refused), 192.0.2.1:1 (connection refused);")
        );
        let (none, _) = first_of(&[]).await;
        let error = none.expect_err("there is no address");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("has no address; check"));
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_over_the_limit_are_counted_and_not_tried() {
        let mut all = vec![Refuses; MAX_ADDRESSES];
        all.extend([Answers(0), Answers(0)]);
        let (none, _) = first_of(&all).await;
        let text = none.expect_err("the others are not tried").to_string();
        assert!(
            text.contains("; 2 more not tried, as the limit is 8"),
            "{text}"
        );
        all[MAX_ADDRESSES - 1] = Answers(0);
        assert_eq!(first_of(&all).await.0.expect("the eighth answers"), 7);
    }

    #[test]
    fn ipv4_and_ipv6_take_turns() {
        let six = |last: u16| SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, last], 443));
        let four = |last: u8| SocketAddr::from(([192, 0, 2, last], 443));
        let turns = in_turns(vec![six(1), six(2), six(3), four(1), four(2)]);
        assert_eq!(turns, [six(1), four(1), six(2), four(2), six(3)]);
        let turns = in_turns(vec![four(1), six(1), six(2)]);
        assert_eq!(turns, [four(1), six(1), six(2)]);
        assert!(in_turns(Vec::new()).is_empty());
    }
}
