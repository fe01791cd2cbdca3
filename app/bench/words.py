"""Text of about a known number of tokens: common words, each one token in usual vocabularies."""

import random

_TEXT = """\
about above across after again against air all almost along also always animal another answer any
area around art ask away back ball bank bar base bed before began behind best better between big
bird black blue board boat body book both bottom box boy bring brother brown build bus business but
buy call came can car card care carry case cat center change check child city class clean clear
close cold color come common company cost could country course cover cross cut dark day deep did
different dog done door down draw dream drive dry during each early earth east easy eat edge end
energy enough even evening ever every example eye face fact fall family far farm fast father feel
feet few field fight figure fill final find fine fire first fish five floor follow food foot force
form found four free friend from front full game garden gave general girl give glass gold gone good
government great green ground group grow half hand happy hard head hear heart heat heavy help here
high hill history hold home horse hot hour house human idea inside interest island just keep kind
king knew land language large last late later law lead learn leave left less letter level life
light like line list little live long look love low machine main make man many map mark market
matter may mean measure men might mile mind minute money moon more morning most mother mountain
move much music must name nation near need never new next night north note nothing notice now
number object ocean off office often oil old once only open order other out over own page paper
part party pass past path pay people perhaps person picture piece place plan plane plant play point
poor power present problem product public put question quick quiet rain read ready real reason
record red rest result rich right river road rock room round rule run sea second see seem sentence
set seven several shape ship short show side simple since sing size sleep slow small snow some song
soon sound south space special stand star start state stay step still stone stop story street
strong study such sun sure system table take talk teach tell ten test than their then there thing
think third this those though three through time today together told took top total toward town
travel tree true try turn two under until use usual very voice wait walk wall want war warm watch
water way week weight well went west what wheel when where which while white who whole why wide
will wind winter with without woman wood word work world would write year yes yet young your
"""
WORDS = tuple(_TEXT.split())


def words(tokens: int, seed: int | str) -> str:
    """``tokens`` words drawn from ``seed``, each after a blank; the same for the same seed."""
    return "".join(f" {word}" for word in random.Random(seed).choices(WORDS, k=tokens))
