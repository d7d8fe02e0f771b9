//! The words that tell whether a fact replaces another, in English, German, French, Spanish, Italian, Portuguese and Dutch.

/// Words that say that something changed.
pub(crate) const CHANGES: &str = "longer anymore changed moved switched replaced postponed delayed rescheduled reschedule shifted pushed slipped \
    renamed quit stopped sold swapped traded transferred relocated cancelled promoted taken wrong mehr geändert \
    umgezogen gewechselt verschoben verkauft changé déménagé quitté démissionné vendu reporté cambié cambiado \
    cambió mudado dejado vendido aplazado più cambiato trasferito trasferita venduto spostato spostata mudei mudou \
    mudamos deixei vendi adiado adiada meer veranderd verhuisd gestopt ingeruild verkocht verplaatst";
/// Words such as "now", which are left out when two facts are compared.
pub(crate) const ADVERBS_OF_TIME: &str = "now actually instead currently again jetzt nun inzwischen doch maintenant désormais finalement ahora ya ora \
    adesso invece agora nu voortaan inmiddels";
/// "New", which marks a change behind a possessive: "my new dentist".
pub(crate) const NEW: &str =
    "new neue neuer neues nouveau nouvelle nuevo nueva nuovo nuova novo nova nieuwe";
/// Possessives.
pub(crate) const POSSESSIVES: &str = "my our mein meine unser unsere mon ma notre mi nuestro nuestra mio mia nostro nostra meu minha nosso nossa \
    mijn ons onze";
/// Pronouns of the first person; facts that begin with one have the same subject.
pub(crate) const FIRST_PERSON: &str = "i we ich wir je j nous yo nosotros io noi eu nós ik wij";
/// Words that say that something is added.
pub(crate) const ADDS: &str = "also too either additionally another besides both second auch außerdem noch zusätzlich aussi également también \
    tampoco además otro otra anche inoltre também além ook daarnaast well apart";
/// Verbs with which several values hold.
pub(crate) const VERBS_OF_SEVERAL: &str = "like likes love loves enjoy enjoys hate hates dislike been speak speaks know knows own owns have has visited \
    play plays goes read reads can collect grow grows cook watch allergic mag liebe spreche habe hat kann spiele \
    spielt aime parle ai joue joues gusta gustan hablo tengo tiene juego piace piacciono parlo ho ha gioco gosto \
    falo tenho tem jogo hou spreek heb heeft speel";
/// Verbs with which one value holds.
pub(crate) const VERBS_OF_ONE: &str = "drive weigh weighs live lives work works study commute wear earn use wiege wohne arbeite fahre studiere habite \
    travaille conduis vivo trabajo conduzco abito lavoro guido moro trabalho dirijo woon werk rijd";
/// Forms of "to be" beside a value.
pub(crate) const IS: &str =
    "is are s was ist sind heißt lautet est sont es está son è é sono são zijn heet";
/// What stands before a value of place or time.
pub(crate) const PREPOSITIONS: &str = "in at on to under behind near until am um im bei nach bis à en chez sous dans con alle nel nella em às no na \
    op om bij";
/// What stands before a name.
pub(crate) const CALLED: &str = "called named genannt appelé llamado chiamato chamado genaamd";
/// Articles.
pub(crate) const ARTICLES: &str = "a an ein eine einen un une una uno uma een";
/// Days; in English also months and hours.
pub(crate) const DAYS_AND_HOURS: &str = "monday tuesday wednesday thursday friday saturday sunday january february march april may june july august \
    september october november december noon midnight morning afternoon evening montag dienstag mittwoch \
    donnerstag freitag samstag sonntag lundi mardi mercredi jeudi vendredi samedi dimanche lunes martes miércoles \
    jueves viernes sábado domingo lunedì martedì mercoledì giovedì venerdì sabato domenica segunda terça quarta \
    quinta sexta maandag dinsdag woensdag donderdag vrijdag zaterdag zondag";
/// Words for what there is one of.
pub(crate) const NOUNS_OF_ONE: &str = "favourite favorite preferred usual current main best email address number size birthday deadline budget \
    postcode adresse nummer größe geburtstag préféré préférée numéro favorito favorita dirección número preferito \
    preferita numero indirizzo preferido preferida endereço favoriete adres";
