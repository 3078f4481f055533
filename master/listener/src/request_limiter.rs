//! Limits of the requests of one connection, by what the connection proved: how many may be open,
//! and how much memory their unread answers may hold.
//!
//! An answer stays in memory until its client reads it, and an HTTP/2 client decides when. So a
//! client that proved nothing has few requests open at once on a connection, and the answers of
//! each caller have bounds. What is beyond is answered without a body: a header waits for no
//! window, so nothing of it stays.

use crate::answers::{Answers, Charge, held};
use crate::connections::Slot;
use crate::idle::{InFlight, Requests, counted};
use crate::unauthenticated::RequestCounts;
use config_limits::Share;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use master_client::{Body, body};
use std::sync::Arc;

/// Accepts or refuses the requests of one connection.
#[derive(Debug)]
pub(crate) struct RequestLimiter {
    /// The open requests.
    pub(crate) requests: Requests,
    /// What the connection proved.
    pub(crate) slot: Arc<Slot>,
    /// The memory of answers, of all connections.
    pub(crate) answers: Arc<Answers>,
    /// How many requests of strangers may be open.
    pub(crate) streams_stranger: usize,
    /// How many requests were unauthenticated, or had a credential that failed.
    pub(crate) counts: RequestCounts,
}

/// An open request.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    limiter: Arc<RequestLimiter>,
    in_flight: InFlight,
    write: bool,
    /// Taken before a write; what is read takes its share afterwards.
    written: Option<Share>,
}

impl RequestLimiter {
    /// Accepts a request; `None` if it is refused. One with a token is accepted even where its
    /// caller has proved nothing yet: the token may prove it, and clients open many watches at once
    /// on a new connection.
    ///
    /// `free`: whether the service behind a method and path limits unauthenticated callers itself.
    pub(crate) fn begin<T>(
        self: &Arc<Self>,
        request: &Request<T>,
        free: impl FnOnce(&Method, &str) -> bool,
    ) -> Option<OpenRequest> {
        let mut in_flight = self.requests.begin();
        let write = !matches!(*request.method(), Method::GET | Method::HEAD);
        let mut written = None;
        let owner = self.slot.owner();
        let nameless = owner.is_none() && !may_show_token(request.headers());
        let free = nameless && free(request.method(), request.uri().path());
        if !free && !self.counts.allow(owner.is_some()) {
            return None;
        }
        match owner {
            Some(owner) if write => match self.answers.before_write(owner, self.slot.host()) {
                Charge::Free => {}
                Charge::Taken(share) => written = Some(share),
                Charge::OverLimit => return None,
            },
            Some(_) => {}
            None => {
                if nameless && !in_flight.is_strangers(self.streams_stranger) {
                    return None;
                }
            }
        }
        Some(OpenRequest {
            limiter: Arc::clone(self),
            in_flight,
            write,
            written,
        })
    }
}

impl OpenRequest {
    /// Charges the answer to its caller; the request counts as open until the body is dropped.
    pub(crate) fn finish(self, answer: Response<Body>) -> Response<Body> {
        let Self {
            limiter,
            mut in_flight,
            write,
            mut written,
        } = self;
        let owner = limiter.slot.owner();
        if owner.is_some() && answer.status() == StatusCode::UNAUTHORIZED {
            limiter.counts.failed();
        }
        if owner.is_none() && !in_flight.is_strangers(limiter.streams_stranger) {
            // Its token was refused, and others before it are not read yet.
            return bare(answer.status());
        }
        if let (true, None, Some(owner)) = (write, &written, owner)
            && let Charge::Taken(share) = limiter.answers.before_write(owner, limiter.slot.host())
        {
            // The first request of a token that proved the connection just now.
            written = Some(share);
        }
        let share = match (held(&answer), written) {
            (None, _) => None,
            (Some(held), Some(mut share)) => {
                share.add(held);
                Some(share)
            }
            (Some(_), None) if write && owner.is_some() => None,
            (Some(held), None) => match limiter.answers.take(owner, limiter.slot.host(), held) {
                Charge::Free => None,
                Charge::Taken(share) => Some(share),
                Charge::OverLimit if owner.is_none() => return bare(answer.status()),
                Charge::OverLimit => return refusal(),
            },
        };
        counted(answer, in_flight, share)
    }
}

/// Whether a request has a place for a token.
fn may_show_token(headers: &HeaderMap) -> bool {
    headers.contains_key(header::AUTHORIZATION)
        || headers.contains_key(header::SEC_WEBSOCKET_PROTOCOL)
}

fn bare(status: StatusCode) -> Response<Body> {
    let mut answer = Response::new(body(""));
    *answer.status_mut() = status;
    answer
}

/// 429 without a body, with a retry after a second.
pub(crate) fn refusal() -> Response<Body> {
    let mut answer = bare(StatusCode::TOO_MANY_REQUESTS);
    let headers = answer.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::{AnswerLimits, Owner};
    use crate::connections::{ConnectionLimits, Connections};
    use crate::unauthenticated::{UnauthenticatedLimits, UnauthenticatedRates};
    use config_limits::Capacity;
    use http_body::Body as _;
    use master_client::{HeldBytes, UserInfo};

    /// Three whole answers of a megabyte for one user or host, and as many for the others.
    const LIMITS: AnswerLimits = AnswerLimits {
        known: Capacity {
            total: 10 << 20,
            part: 4 << 20,
            kept: 4 << 20,
        },
        strangers: Capacity {
            total: 4 << 20,
            part: 2 << 20,
            kept: 0,
        },
    };
    const MOST: usize = 1000 << 10;

    fn limiter(answers: &Arc<Answers>, owner: Option<Owner>) -> Arc<RequestLimiter> {
        limiter_from(1, answers, owner)
    }

    fn limiter_from(host: u8, answers: &Arc<Answers>, owner: Option<Owner>) -> Arc<RequestLimiter> {
        let connections = Connections::new(ConnectionLimits::default());
        let slot = connections.enter([192, 0, 2, host].into());
        if let Some(owner) = owner {
            slot.identify(&UserInfo::authenticated("somebody", [""; 0]), false);
            slot.own(|| owner);
        }
        let rates = UnauthenticatedRates::new(UnauthenticatedLimits::default());
        Arc::new(RequestLimiter {
            requests: Requests::new(),
            counts: RequestCounts::new(&rates, slot.from()),
            slot: Arc::new(slot),
            answers: Arc::clone(answers),
            streams_stranger: 100,
        })
    }

    fn user(name: &str) -> Owner {
        Owner::User(name.to_owned())
    }

    fn ask(limiter: &Arc<RequestLimiter>, method: Method, size: usize) -> Response<Body> {
        let mut request = Request::new(());
        *request.method_mut() = method;
        match limiter.begin(&request, |_, _| false) {
            Some(open) => open.finish(Response::new(body(vec![7; size]))),
            None => refusal(),
        }
    }

    fn codes(answers: &[Response<Body>]) -> Vec<u16> {
        answers.iter().map(|one| one.status().as_u16()).collect()
    }

    #[test]
    fn unread_answers_hold_their_users_part_and_leave_that_of_nodes() {
        let answers = Answers::new(LIMITS);
        let one = limiter(&answers, Some(user("one")));
        let mut held: Vec<_> = (0..5).map(|_| ask(&one, Method::GET, MOST)).collect();
        assert_eq!(codes(&held), [200, 200, 200, 429, 429]);
        assert!(held[4].body().is_end_stream(), "a refusal holds nothing");
        let two = limiter(&answers, Some(user("two")));
        let beside = ask(&two, Method::GET, MOST);
        assert_eq!(beside.status(), 429, "another user of the same host");
        let two = limiter_from(2, &answers, Some(user("two")));
        held.extend((0..4).map(|_| ask(&two, Method::GET, MOST)));
        assert_eq!(codes(&held[5..]), [200, 200, 200, 429], "another user");
        let three = limiter_from(3, &answers, Some(user("three")));
        assert_eq!(ask(&three, Method::GET, MOST).status(), 429, "of all");
        let node = |name: &str| limiter(&answers, Some(Owner::Node(name.to_owned())));
        let of_nodes = ["n", "n", "m"].map(|name| ask(&node(name), Method::GET, MOST));
        assert_eq!(
            codes(&of_nodes),
            [200, 429, 200],
            "an eighth of what is kept"
        );
        let admin = limiter(&answers, Some(Owner::Admin));
        assert_eq!(ask(&admin, Method::GET, MOST).status(), 200);
        // What is shared or has no end takes nothing, or little.
        let shared = one.begin(&Request::new(()), |_, _| false).unwrap();
        let mut document = Response::new(body(vec![7; MOST]));
        document.extensions_mut().insert(HeldBytes(0));
        assert_eq!(shared.finish(document).status(), 200);
        drop((held, of_nodes));
        assert_eq!(answers.taken(), [0, 0]);
        assert_eq!(ask(&three, Method::GET, 100 << 20).status(), 200, "alone");
    }

    #[test]
    fn no_write_is_refused_after_it_was_carried_out() {
        let answers = Answers::new(LIMITS);
        let one = limiter(&answers, Some(user("one")));
        let mut held: Vec<_> = (0..2).map(|_| ask(&one, Method::GET, MOST)).collect();
        let write = Request::post("/").body(()).unwrap();
        let open = one.begin(&write, |_, _| false).unwrap();
        held.push(open.finish(Response::new(body(vec![7; 3 * MOST]))));
        assert_eq!(codes(&held), [200, 200, 200]);
        assert!(
            one.begin(&write, |_, _| false).is_none(),
            "the next one is not begun"
        );
        drop(held);
        assert!(one.begin(&write, |_, _| false).is_some());
    }

    #[test]
    fn strangers_share_a_part_of_their_own_and_beyond_it_get_bare_answers() {
        let answers = Answers::new(LIMITS);
        let stranger = limiter(&answers, None);
        let held: Vec<_> = (0..3).map(|_| ask(&stranger, Method::GET, MOST)).collect();
        let empty = held.iter().map(|one| one.body().is_end_stream());
        assert_eq!(empty.collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(codes(&held), [200, 200, 200], "the status is reported");
        assert_eq!(answers.taken()[0], 0);
        drop(held);
        assert_eq!(answers.taken(), [0, 0]);
    }
}
