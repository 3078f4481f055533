//! The shapes of documents: which keys a table has, with their types and help texts. The reader
//! makes them from its tables, and the reference prints them.

/// A key of a table.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) shape: fn() -> Shape,
    /// What it means; `{NAME}` stands for a constant of [`crate::defaults`].
    pub(crate) help: &'static str,
}

/// The type of a value.
#[derive(Debug)]
pub(crate) enum Shape {
    Scalar(&'static str),
    Array(Box<Self>),
    /// A table whose keys the author of the document chooses.
    Map(Box<Self>),
    Table(&'static [Key]),
    /// A scalar, or a table that says more.
    Either(&'static str, &'static [Key]),
}

impl Shape {
    /// The type's name, as the reference writes it.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Scalar(name) => (*name).to_owned(),
            Self::Array(of) => format!("array of {}", of.plural()),
            Self::Map(of) => format!("table of {}", of.plural()),
            Self::Table(_) => "table".to_owned(),
            Self::Either(name, _) => format!("{name} or table"),
        }
    }

    fn plural(&self) -> String {
        match self {
            Self::Either(name, _) => format!("{name}s or tables"),
            Self::Array(of) => format!("arrays of {}", of.plural()),
            Self::Scalar(_) | Self::Map(_) | Self::Table(_) => format!("{}s", self.name()),
        }
    }

    /// The table in it, and the header under which a document writes it, below `path`.
    pub(crate) fn table(&self, path: &str) -> Option<(String, &'static [Key])> {
        match self {
            Self::Table(keys) => Some((format!("[{path}]"), keys)),
            Self::Either(_, keys) => Some((format!("an element of `{path}`"), keys)),
            Self::Array(of) => match of.as_ref() {
                Self::Table(keys) => Some((format!("[[{path}]]"), keys)),
                Self::Scalar(_) | Self::Array(_) | Self::Map(_) | Self::Either(..) => {
                    of.table(path)
                }
            },
            Self::Scalar(_) | Self::Map(_) => None,
        }
    }
}
