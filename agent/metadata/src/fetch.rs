//! The exchange with a metadata service: requests out, answers in. Pure and total.

use crate::MAX_BYTES;
use crate::platform::Platform;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Most bytes of EC2's token, which is 56 long.
const MAX_TOKEN: usize = 1024;
/// Most bytes of an answer in base64, with line ends.
const MAX_BASE64: usize = MAX_BYTES / 3 * 4 + 4096;
/// The requested lifetime of EC2's token, in seconds: longer than one exchange takes.
const TOKEN_SECONDS: &str = "120";
/// With the first version of Azure's interface (IMDS) that has user-data.
const AZURE_PATH: &str = "/metadata/instance/compute/userData?api-version=2021-01-01&format=text";

/// One HTTP request, without a body.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    /// `GET` or `PUT`.
    pub method: &'static str,
    /// Path and query.
    pub path: &'static str,
    /// The one header that the service asks for, if any.
    pub header: Option<(&'static str, String)>,
    /// Most bytes of a useful answer.
    pub limit: usize,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The header may hold a token.
        write!(f, "{} {}", self.method, self.path)
    }
}

/// One HTTP answer, its body within the request's limit.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The header `Metadata-Flavor`.
    pub flavour: Option<String>,
    /// The body.
    pub body: Vec<u8>,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Answer({}, {} bytes)", self.status, self.body.len())
    }
}

/// The next step after an answer. Its texts contain nothing of an answer's content, which may be
/// secret.
#[derive(Clone, PartialEq, Eq)]
pub enum Step {
    /// Send the next request.
    Ask(Fetch),
    /// The user-data's exact bytes, 1 to [`MAX_BYTES`].
    Done(Vec<u8>),
    /// The machine has no user-data.
    Nothing,
    /// Something that a later attempt may cure; the text says what.
    Later(String),
    /// Something that no later attempt will cure; the text says what, and what to do.
    Refused(String),
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ask(fetch) => write!(f, "Ask({:?})", fetch.request()),
            Self::Done(bytes) => write!(f, "Done({} bytes)", bytes.len()),
            Self::Nothing => f.write_str("Nothing"),
            Self::Later(why) => write!(f, "Later({why})"),
            Self::Refused(why) => write!(f, "Refused({why})"),
        }
    }
}

/// An exchange at one of its steps.
#[derive(Clone, PartialEq, Eq)]
pub struct Fetch {
    platform: Platform,
    token: Option<String>,
}

impl std::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fetch({:?})", self.request())
    }
}

impl Fetch {
    /// An exchange before its first request.
    pub fn new(platform: Platform) -> Self {
        Self {
            platform,
            token: None,
        }
    }

    /// Whether the next answer is EC2's token.
    fn wants_token(&self) -> bool {
        self.platform == Platform::Ec2 && self.token.is_none()
    }

    /// The request to send now.
    pub fn request(&self) -> Request {
        if self.wants_token() {
            let header = Some((
                "x-aws-ec2-metadata-token-ttl-seconds",
                TOKEN_SECONDS.to_owned(),
            ));
            return Request {
                method: "PUT",
                path: "/latest/api/token",
                header,
                limit: MAX_TOKEN,
            };
        }
        let (path, header, limit) = match self.platform {
            Platform::Ec2 => {
                let token = self
                    .token
                    .clone()
                    .map(|token| ("x-aws-ec2-metadata-token", token));
                ("/latest/user-data", token, MAX_BYTES)
            }
            Platform::Gce => {
                let flavour = Some(("metadata-flavor", "Google".to_owned()));
                (
                    "/computeMetadata/v1/instance/attributes/user-data",
                    flavour,
                    MAX_BYTES,
                )
            }
            Platform::Azure => (
                AZURE_PATH,
                Some(("metadata", "true".to_owned())),
                MAX_BASE64,
            ),
            Platform::OpenStack => ("/openstack/latest/user_data", None, MAX_BYTES),
            Platform::Hetzner => ("/hetzner/v1/userdata", None, MAX_BYTES),
            Platform::DigitalOcean => ("/metadata/v1/user-data", None, MAX_BYTES),
        };
        Request {
            method: "GET",
            path,
            header,
            limit,
        }
    }

    /// Takes the answer to [`Fetch::request`].
    pub fn answer(self, answer: Answer) -> Step {
        let Answer {
            status,
            flavour,
            body,
        } = answer;
        match status {
            200 if self.wants_token() => self.token(body),
            200 if self.platform == Platform::Gce && flavour.as_deref() != Some("Google") => Step::Refused(
                "the answer does not carry `Metadata-Flavor: Google`: something else answers in the service's place; \
                 check the network of this machine"
                    .to_owned(),
            ),
            200 => self.data(body),
            300..=399 => Step::Refused(format!("status {status}: redirects are never followed; check what answers")),
            403 if self.platform == Platform::Ec2 => Step::Refused(
                "status 403: the metadata service is switched off for this instance; enable it".to_owned(),
            ),
            404 if !self.wants_token() => Step::Nothing,
            // A token that ran out meanwhile; a service that is restarted or has too much to do.
            401 | 408 | 410 | 429 | 500..=599 => Step::Later(format!("status {status}")),
            status => {
                Step::Refused(format!("status {status}; check that this is the platform that the firmware names"))
            }
        }
    }

    fn token(self, body: Vec<u8>) -> Step {
        let token = String::from_utf8(body).ok().filter(|text| {
            (1..=MAX_TOKEN).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_graphic())
        });
        match token {
            Some(token) => Step::Ask(Self {
                token: Some(token),
                ..self
            }),
            None => Step::Refused(
                "what came is no token of this service; check what answers".to_owned(),
            ),
        }
    }

    fn data(&self, body: Vec<u8>) -> Step {
        let bytes = if self.platform == Platform::Azure {
            let plain: Vec<u8> = body
                .into_iter()
                .filter(|byte| !byte.is_ascii_whitespace())
                .collect();
            let Ok(bytes) = STANDARD.decode(plain) else {
                return Step::Refused(
                    "the user-data is not the base64 that this service gives; set it again"
                        .to_owned(),
                );
            };
            bytes
        } else {
            body
        };
        match bytes.len() {
            0 => Step::Nothing,
            1..=MAX_BYTES => Step::Done(bytes),
            _ => Step::Refused("the user-data is longer than 64 KiB; make it shorter".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, Fetch, Step};
    use crate::{MAX_BYTES, Platform};
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    const DATA: &[u8] = b"version = 1\n";

    fn ok(body: &[u8]) -> Answer {
        Answer {
            status: 200,
            flavour: Some("Google".to_owned()),
            body: body.to_vec(),
        }
    }

    fn status(status: u16) -> Answer {
        Answer {
            status,
            ..Answer::default()
        }
    }

    /// The exchange at the request for the data itself.
    fn at_data(platform: Platform) -> Fetch {
        match (platform, Fetch::new(platform).answer(ok(b"token"))) {
            (Platform::Ec2, Step::Ask(fetch)) => fetch,
            (_, _) => Fetch::new(platform),
        }
    }

    #[test]
    fn requests_are_those_of_each_service() {
        let all: Vec<String> = Platform::ALL
            .map(|platform| {
                let request = at_data(platform).request();
                let header = request
                    .header
                    .map(|(name, value)| format!(" {name}: {value}"))
                    .unwrap_or_default();
                format!("{} {}{header}", request.method, request.path)
            })
            .to_vec();
        let expected = [
            "GET /latest/user-data x-aws-ec2-metadata-token: token",
            "GET /computeMetadata/v1/instance/attributes/user-data metadata-flavor: Google",
            "GET /metadata/instance/compute/userData?api-version=2021-01-01&format=text metadata: true",
            "GET /openstack/latest/user_data",
            "GET /hetzner/v1/userdata",
            "GET /metadata/v1/user-data",
        ];
        assert_eq!(all, expected);
        let first = Fetch::new(Platform::Ec2).request();
        assert_eq!((first.method, first.path), ("PUT", "/latest/api/token"));
    }

    #[test]
    fn good_answers_give_the_exact_bytes() {
        for platform in Platform::ALL {
            let body = if platform == Platform::Azure {
                STANDARD.encode(DATA).into_bytes()
            } else {
                DATA.to_vec()
            };
            assert_eq!(
                at_data(platform).answer(ok(&body)),
                Step::Done(DATA.to_vec()),
                "{platform:?}"
            );
        }
    }

    #[test]
    fn a_machine_without_user_data_is_distinguished_from_a_failure() {
        for platform in Platform::ALL {
            assert_eq!(
                at_data(platform).answer(status(404)),
                Step::Nothing,
                "{platform:?}"
            );
            assert_eq!(
                at_data(platform).answer(ok(b"")),
                Step::Nothing,
                "{platform:?}"
            );
            assert!(
                matches!(at_data(platform).answer(status(503)), Step::Later(_)),
                "{platform:?}"
            );
        }
        // A service that knows no tokens is not EC2's.
        assert!(matches!(
            Fetch::new(Platform::Ec2).answer(status(404)),
            Step::Refused(_)
        ));
    }

    #[test]
    fn hostile_answers_are_refused() {
        for code in [100, 201, 204, 301, 302, 307, 308, 400, 418] {
            for platform in Platform::ALL {
                let step = at_data(platform).answer(Answer {
                    status: code,
                    ..ok(DATA)
                });
                assert!(
                    matches!(step, Step::Refused(_)),
                    "{platform:?} {code}: {step:?}"
                );
            }
        }
        let long = vec![b'#'; MAX_BYTES + 1];
        assert!(matches!(
            at_data(Platform::Hetzner).answer(ok(&long)),
            Step::Refused(_)
        ));
        assert!(matches!(
            at_data(Platform::Azure).answer(ok(STANDARD.encode(&long).as_bytes())),
            Step::Refused(_)
        ));
        assert!(matches!(
            at_data(Platform::Azure).answer(ok(b"%%%")),
            Step::Refused(_)
        ));
        for flavour in [None, Some("google".to_owned()), Some("Amazon".to_owned())] {
            let answer = Answer {
                flavour,
                ..ok(DATA)
            };
            assert!(matches!(
                at_data(Platform::Gce).answer(answer),
                Step::Refused(_)
            ));
        }
        for token in [
            &b""[..],
            b"a b",
            b"a\r\nhost: x",
            &[0xFF],
            &vec![b'a'; 1025],
        ] {
            assert!(
                matches!(
                    Fetch::new(Platform::Ec2).answer(ok(token)),
                    Step::Refused(_)
                ),
                "{token:?}"
            );
        }
    }

    #[test]
    fn neither_token_nor_data_shows_in_debug_text() {
        let fetch = at_data(Platform::Ec2);
        let all = format!(
            "{fetch:?} {:?} {:?} {:?}",
            fetch.request(),
            ok(b"secret"),
            Step::Done(b"secret".to_vec())
        );
        assert!(!all.contains("secret") && !all.contains(": token"), "{all}");
    }

    proptest! {
        /// Whatever comes, what is taken for user-data has 1 to 64 KiB and came with status 200.
        #[test]
        fn any_answer_is_survived(code in any::<u16>(), body in prop::collection::vec(any::<u8>(), 0..200), which in 0_usize..6) {
            let platform = Platform::ALL[which];
            for fetch in [Fetch::new(platform), at_data(platform)] {
                if let Step::Done(bytes) = fetch.answer(Answer { status: code, ..ok(&body) }) {
                    prop_assert!(code == 200 && (1..=MAX_BYTES).contains(&bytes.len()));
                }
            }
        }
    }
}
