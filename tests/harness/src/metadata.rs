//! A metadata service as EC2 has it, on a loopback port of the host: a token first, then the
//! user-data.

use crate::{Result, file_error};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

const TOKEN: &str = "token-of-this-service";
/// Most lines of a request's head.
const LINES: usize = 64;

/// The service; it ends with the process that started it.
#[derive(Debug)]
pub struct MetadataService {
    /// Its port on loopback.
    pub port: u16,
}

impl MetadataService {
    /// Starts it with a machine's user-data.
    pub fn start(user_data: &[u8]) -> Result<Self> {
        let what = "cannot listen for metadata requests on";
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .map_err(file_error(what, Path::new("127.0.0.1")))?;
        let port = listener
            .local_addr()
            .map_err(file_error(what, Path::new("127.0.0.1")))?
            .port();
        let user_data = user_data.to_vec();
        drop(std::thread::spawn(move || {
            for stream in listener.incoming().map_while(std::io::Result::ok) {
                // A guest that went away asks again.
                answer(stream, &user_data).ok();
            }
        }));
        Ok(Self { port })
    }
}

fn answer(stream: TcpStream, user_data: &[u8]) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines().take(LINES);
    let asked = lines.next().transpose()?.unwrap_or_default();
    let mut head = Vec::new();
    for line in lines {
        match line? {
            end if end.is_empty() => break,
            line => head.push(line.to_ascii_lowercase()),
        }
    }
    let has = |header: &str| head.iter().any(|line| line == header);
    let (status, body): (&str, &[u8]) = match asked.as_str() {
        "PUT /latest/api/token HTTP/1.1" => ("200 OK", TOKEN.as_bytes()),
        "GET /latest/user-data HTTP/1.1" if has(&format!("x-aws-ec2-metadata-token: {TOKEN}")) => {
            ("200 OK", user_data)
        }
        "GET /latest/user-data HTTP/1.1" => ("401 Unauthorized", b""),
        _ => ("404 Not Found", b""),
    };
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(body)
}
